#pragma once

#include "mezzo/cpp20.h"

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "mezzo/amp/op_policy.h"

namespace mezzo {

/// Records the casts of autocast while an AutocastGuard carries it: the op, its policy line, both
/// dtypes, the module, the count and the bytes. Changes no number: without an OpPolicy, casts
/// follow OpPolicy::built_in and PyTorch's cache.
///
/// @code
/// mezzo::CastLog log;
/// {
///   mezzo::AutocastGuard autocast(torch::kCPU, torch::kBFloat16, mezzo::AutocastOptions().log(&log));
///   model->forward(input);
/// }
/// std::cout << log.to_table();
/// @endcode
///
/// Thread-safe: guards on several threads may write to one log. It must outlive them. Never syncs.
class CastLog {
 public:
  /// Equal casts, counted.
  struct Entry {
    std::string op;        ///< "aten::linear", or the name of a wrapped function
    CastPolicy policy;     ///< the line that asked for the cast
    c10::ScalarType from;  ///< dtype before the cast
    c10::ScalarType to;    ///< dtype after the cast
    std::string module;    ///< the ModuleScope path; empty if unknown
    int64_t count = 0;     ///< tensors converted
    int64_t bytes = 0;     ///< memory of the converted copies; 0 if the op converts on the fly (softmax, sum, norm)
    int64_t cached = 0;    ///< further uses of a kept copy
  };

  CastLog() = default;
  CastLog(const CastLog&) = delete;
  CastLog& operator=(const CastLog&) = delete;

  /// All entries so far: most bytes first, then by op, module and dtypes.
  std::vector<Entry> entries() const;

  /// Lines of text for a terminal, a heading first and the sum last.
  std::string to_table() const;

  /// A JSON array of objects {"op", "policy", "from", "to", "module", "count", "bytes", "cached"}.
  std::string to_json() const;

  /// Removes all entries.
  void clear();

  /// Runs `function` once under autocast to record its casts, without gradients. Afterwards the
  /// device's random-number state is restored. Put a model with batch norms into eval mode.
  /// @param function  runs the model's forward on an input of the usual shape
  /// @param policy  nullopt: the policy of the enclosing region, or else PyTorch's op list
  void dry_run(c10::Device device,
               c10::ScalarType dtype,
               const std::function<void()>& function,
               const std::optional<OpPolicy>& policy = std::nullopt);

 private:
  friend class TensorCaster;

  /// Records one converted tensor of `bytes`, or one use of a kept copy.
  void record(const std::string& op,
              CastPolicy policy,
              c10::ScalarType from,
              c10::ScalarType to,
              int64_t bytes,
              bool from_cache);

  using Key = std::tuple<std::string, CastPolicy, c10::ScalarType, c10::ScalarType, std::string>;
  struct Totals {
    int64_t count = 0, bytes = 0, cached = 0;
  };

  mutable std::mutex mutex_;
  std::map<Key, Totals> totals_;
};

}  // namespace mezzo
