#pragma once

#include <ATen/record_function.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace mezzo {

/// The facts about an op that a tracer needs, read off its schema once.
struct TracedOp {
  struct Argument {
    std::string name;
    bool is_written;  ///< changed in place, or an out=
    bool is_out;      ///< not read
  };

  std::string name;  ///< "aten::add.Tensor"
  std::vector<Argument> arguments;
  std::vector<bool> returns_view;  ///< per result: shares memory with an argument, and was not changed
  bool is_copy = false;            ///< hands on an argument's values, perhaps in another dtype
  bool is_silent = false;          ///< produces no values: allocates, or is composed of other ops
  bool is_ignored = false;         ///< by the user
};

/// The ops met so far. Thread-safe.
class TracedOps {
 public:
  explicit TracedOps(std::vector<std::string> ignored) : ignored_(std::move(ignored)) {}

  /// Null where `function` is not an op, but a range that somebody named.
  const TracedOp* find(const at::RecordFunction& function);

 private:
  std::unique_ptr<TracedOp> read(const c10::OperatorName& name) const;

  std::vector<std::string> ignored_;
  std::mutex mutex_;
  std::unordered_map<const char*, std::unique_ptr<TracedOp>> ops_;  // by the address of the schema's name
};

}  // namespace mezzo
