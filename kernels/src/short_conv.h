// Gated causal convolutions over a token and its latest ancestors. Included after one simd_*.h.
#pragma once

#include "carver.h"
#include "conv_taps.h"

namespace edk {
namespace {

constexpr int64_t kConvChannels = 256;  // of one task: whole cache lines of rows that begin at one

/// What the tasks share. `taps` as of conv_taps.
struct ShortConvWork {
  const ShortConvArgs* args;
  const float* const* taps;
  int64_t channels;  // of one task
};

/// Sums taps from the oldest to the token's own, for sixteen channels from `c` on.
inline Floats conv_sum(const float* const* taps, const float* weight, int64_t size, int64_t c,
                       int64_t n) {
  Floats sum = set1(0.0f);
  for (int64_t k = 0; k < size; ++k) {
    if (taps[k]) sum = fma(load_n(taps[k] + c, n), load_n(weight + k * kPanel, n), sum);
  }
  return sum;
}

void short_conv_task(void* user, int64_t task) {
  const auto& work = *static_cast<const ShortConvWork*>(user);
  const ShortConvArgs& args = *work.args;
  const int64_t n = args.channels, size = args.size, begin = task * work.channels;
  const int64_t end = begin + work.channels < n ? begin + work.channels : n;
  float* weight;
  lay_out(ScratchUse::kTask, [&](Carver& carver) { weight = carver.take<float>(size * kPanel); });
  for (int64_t c = begin; c < end; c += kPanel) {
    const int64_t m = end - c;
    for (int64_t k = 0; k < size; ++k) {
      for (int64_t i = 0; i < kPanel && i < m; ++i) {
        weight[k * kPanel + i] = args.weight[(c + i) * size + k];
      }
    }
    for (int64_t r = 0; r < args.rows; ++r) {
      const float* b = args.bcx + r * 3 * n;
      float* kept = args.kept + (args.past + args.known + r) % args.n_kept * n;
      store_n(kept + c, mul(load_n(b + c, m), load_n(b + 2 * n + c, m)), m);
      Floats sum = conv_sum(work.taps + r * size, weight, size, c, m);
      if (args.bias) sum = add(sum, load_n(args.bias + c, m));
      store_n(args.out + r * n + c, mul(load_n(b + n + c, m), sum), m);
    }
  }
}

void short_conv(const ShortConvArgs& args, const Parallel& parallel) {
  const float** taps;
  lay_out(ScratchUse::kOperator,
          [&](Carver& carver) { taps = carver.take<const float*>(args.rows * args.size); });
  conv_taps({args.parents, args.past, args.known, args.rows, args.size, args.n_kept},
            args.kept, args.channels, taps);
  // Tasks write parts of the same rows: where these do not begin at cache lines, one does it all.
  const int64_t channels = args.channels % kPanel == 0 ? kConvChannels : args.channels;
  ShortConvWork work{&args, taps, channels};
  parallel.run(ceil_div(args.channels, channels), short_conv_task, &work);
}

}  // namespace
}  // namespace edk
