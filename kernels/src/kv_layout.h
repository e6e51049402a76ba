// Where the KV cache keeps keys and values, by its format. kernels.h draws the layouts.
// Included after one simd_*.h.
#pragma once

#include "kernels.h"
#include "layout.h"

namespace edk {
namespace {

/// Elements of blocks in format `Format`, of keys and of values: their size, their place and what they
/// stand for.
template <int Format>
struct KvElements;

template <>
struct KvElements<kKvFloat16> {
  static constexpr bool kIsQuantised = false;
  static constexpr bool kMixesValues = false;
  static constexpr int64_t kHeader = 0;       // bytes before a block's elements
  static constexpr int64_t kBlocksAhead = 4;  // how far ahead of its use a line is asked for

  struct Keys {
    static constexpr int kTogether = 1;     // channels whose vectors share their bytes
    static constexpr int64_t kBytes = 32;   // of so many
    /// Channel `which` of `n` that share the bytes at p.
    static Floats load(const uint8_t* p, int64_t, int64_t) {
      return load_half(reinterpret_cast<const uint16_t*>(p));
    }
  };
  struct Values {
    static constexpr int kTogether = 1;    // vectors of 16 dimensions that share their bytes
    static constexpr int64_t kBytes = 32;  // of so many
    static int64_t row(int64_t head_size) { return 2 * head_size; }  // bytes
    /// Vector `which` of those at p.
    static Floats load(const uint8_t* p, int64_t) {
      return load_half(reinterpret_cast<const uint16_t*>(p));
    }
    /// Its first n elements.
    static Floats load_n(const uint8_t* p, int64_t, int64_t n) {
      return load_half_n(reinterpret_cast<const uint16_t*>(p), n);
    }
  };
};

template <>
struct KvElements<kKvInt8> {
  static constexpr bool kIsQuantised = true;
  static constexpr bool kMixesValues = false;
  static constexpr int64_t kHeader = 2 * kPanel;
  static constexpr int64_t kBlocksAhead = 8;

  struct Keys {
    static constexpr int kTogether = 1;
    static constexpr int64_t kBytes = 16;
    static Floats load(const uint8_t* p, int64_t, int64_t) { return load_i8(p); }
  };
  struct Values {
    static constexpr int kTogether = 1;
    static constexpr int64_t kBytes = 16;
    static int64_t row(int64_t head_size) { return ceil_div(head_size, 16) * 16; }
    static Floats load(const uint8_t* p, int64_t) { return load_i8(p); }
    // Rows are whole vectors.
    static Floats load_n(const uint8_t* p, int64_t, int64_t n) {
      return n > 0 ? load_i8(p) : set1(0.0f);
    }
  };
};

template <>
struct KvElements<kKvK5V4> {
  static constexpr bool kIsQuantised = true;
  static constexpr bool kMixesValues = true;
  static constexpr int64_t kHeader = 2 * kPanel;
  static constexpr int64_t kBlocksAhead = 16;

  struct Keys {
    static constexpr int kTogether = 8;
    static constexpr int64_t kBytes = 5 * kPanel;
    static Floats load(const uint8_t* p, int64_t which, int64_t n) {
      return load_signed_sizes(p + which / 2 * kPanel, p + n / 2 * kPanel, static_cast<int>(which));
    }
  };
  struct Values {
    static constexpr int kTogether = 2;
    static constexpr int64_t kBytes = 16;
    static int64_t row(int64_t head_size) { return ceil_div(head_size, 32) * 16; }
    static Floats load(const uint8_t* p, int64_t which) {
      return which == 0 ? load_low_levels(p) : load_high_levels(p);
    }
    // Rows are whole pairs of vectors.
    static Floats load_n(const uint8_t* p, int64_t which, int64_t n) {
      return n > 0 ? load(p, which) : set1(0.0f);
    }
  };
};

/// One head's keys or values of one sequence.
template <class Byte>
struct KvBlocks {
  Byte* base;
  int64_t block_bytes;
  int64_t blocks;
  const KvRun* runs;

  KvBlocks(Byte* cache, const AttentionArgs& a, int64_t head, int64_t size)
      : base(cache), block_bytes(size), blocks(a.capacity / kPanel), runs(a.runs) {
    base += head * (a.head_rows / kPanel) * block_bytes;
  }
  /// The block that `position` lies in, at slot position % kPanel.
  Byte* at(int64_t position) const {
    int64_t block = block_of(position);
    const KvRun& run = run_of(&block);
    return base + (run.first + block) * block_bytes;
  }
  /// The first position after `position` whose block does not follow in memory.
  int64_t end_of_run(int64_t position) const {
    int64_t block = block_of(position);
    const KvRun& run = run_of(&block);
    return (position / kPanel + run.panels - block) * kPanel;
  }

 private:
  int64_t block_of(int64_t position) const {
    const int64_t block = position / kPanel;
    return block < blocks ? block : block % blocks;
  }
  /// The run that a block is in; `block` counts from its first then.
  const KvRun& run_of(int64_t* block) const {
    const KvRun* run = runs;
    for (; *block >= run->panels; ++run) *block -= run->panels;
    return *run;
  }
};

/// Scales of a block of a quantised format, one per slot.
inline const uint16_t* block_scales(const uint8_t* block) {
  return reinterpret_cast<const uint16_t*>(block);
}

}  // namespace
}  // namespace edk
