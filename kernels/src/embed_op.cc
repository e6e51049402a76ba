#include <algorithm>

#include "custom_ops.h"
#include "layout.h"
#include "mapped_files.h"
#include "matrix_input.h"

namespace edk {
namespace {

/// Embed(ids int64 [..., T], table uint8 [bytes]) -> float [..., T, k].
/// Attributes: format, n (rows of the table), k, scattered? (0): few rows of the table are ever read.
class EmbedOp {
 public:
  static constexpr const char* kName = "Embed";
  static constexpr Port kPorts[] = {
      {"ids", kInt64, kRequired},
      {"table", kUint8, kRequired},
  };
  static constexpr int kOutputs[] = {kFloat};

  explicit EmbedOp(const Node& node);
  void compute(const Kernels& kernels, const Call& call) const;

 private:
  int64_t k_;
  Matrix table_;
  Tensor packed_;  // present if the table is a constant
};

EmbedOp::EmbedOp(const Node& node) : k_(node.integer("k", 1, kMaxK)), packed_(node.constant(1)) {
  table_ = matrix_attributes(node.integer("format", 0, INT32_MAX), node.integer("n", 1, kMaxN), k_);
  if (packed_.is_present()) set_packed(table_, k_, packed_, "table");
  if (node.integer_or("scattered", 0) != 0 && packed_.is_present()) {
    expect_scattered_reads(table_.packed, packed_nbytes(table_.format, table_.n, k_));
  }
}

void EmbedOp::compute(const Kernels& kernels, const Call& call) const {
  const Tensor ids = call.input(0);
  EmbedArgs args;
  args.ids = ids.as<const int64_t>();
  args.rows = ids.n_elements();
  args.k = k_;
  args.table = table_;
  if (!packed_.is_present()) set_packed(args.table, k_, call.input(1), "table");
  for (int64_t i = 0; i < args.rows; ++i) {
    if (args.ids[i] < 0 || args.ids[i] >= table_.n) {
      fail("ids[%lld] is %lld, expected 0 to %lld", static_cast<long long>(i),
           static_cast<long long>(args.ids[i]), static_cast<long long>(table_.n - 1));
    }
  }
  if (ids.rank >= kMaxRank) fail("ids has rank %d, expected at most %d", ids.rank, kMaxRank - 1);
  int64_t dims[kMaxRank];
  std::copy_n(ids.dims, ids.rank, dims);
  dims[ids.rank] = k_;
  args.out = call.output(dims, ids.rank + 1);
  if (args.rows > 0) kernels.embed(args, call);
}

const Registration<EmbedOp> kEmbedRegistration;

}  // namespace
}  // namespace edk
