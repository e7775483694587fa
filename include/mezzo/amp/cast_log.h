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

/// Records what autocast casts while an AutocastGuard carries it: which op, by which policy line,
/// from and to which dtype, where in the model, how often and how many bytes. Changes no number:
/// without an OpPolicy, casts follow OpPolicy::built_in and PyTorch's cache.
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
  struct Entry {
    std::string op;     ///< "aten::linear", or the name of a wrapped function
    CastPolicy policy;  ///< the line that asked for it
    c10::ScalarType from, to;
    std::string module;  ///< the ModuleScope path; empty where none is known
    int64_t count = 0;   ///< tensors converted
    int64_t bytes = 0;   ///< memory of the converted copies; 0 where the op converts on the fly (softmax, sum, norm)
    int64_t cached = 0;  ///< times more that a kept copy was used again
  };

  CastLog() = default;
  CastLog(const CastLog&) = delete;
  CastLog& operator=(const CastLog&) = delete;

  /// Everything so far: most bytes first, then by op, module and dtypes.
  std::vector<Entry> entries() const;

  /// Lines of text for a terminal, a heading first and the sum last.
  std::string to_table() const;

  /// A JSON array of objects {"op", "policy", "from", "to", "module", "count", "bytes", "cached"}.
  std::string to_json() const;

  void clear();

  /// Runs `function` once under autocast to record what it casts, without gradients and with the
  /// device's random numbers put back. Put a model with batch norms into eval mode.
  /// @param function  runs the model's forward on an input of the usual shape
  /// @param policy  nullopt: the enclosing region's, or else PyTorch's own
  void dry_run(c10::Device device,
               c10::ScalarType dtype,
               const std::function<void()>& function,
               const std::optional<OpPolicy>& policy = std::nullopt);

 private:
  friend class TensorCaster;

  /// One tensor of `bytes` converted, or a kept copy used.
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
