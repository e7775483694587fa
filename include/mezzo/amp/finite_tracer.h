#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/arg.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mezzo {

/// A tensor as an op saw it: its finite values' range, and what else it held.
struct TracedTensor {
  std::string name;  ///< of the argument, as in the op's schema; "output" for a result
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::kFloat;
  double min = 0;  ///< of the finite values; NaN if there are none
  double max = 0;
  int64_t num_inf = 0;  ///< +inf
  int64_t num_minus_inf = 0;
  int64_t num_nan = 0;

  bool is_finite() const { return num_inf == 0 && num_minus_inf == 0 && num_nan == 0; }
};

/// The op with which non-finite values began.
struct NonFiniteOp {
  /// false: an argument held NaN or +inf already (a gradient: or -inf), and no op that could be
  /// seen had made it: a bad input or parameter, or a kernel outside of ATen.
  bool produced_here = true;
  std::string op;  ///< "aten::log", "aten::add.Tensor"; or a backward node that received bad gradients
  bool in_backward = false;
  std::string module = {};         ///< path of ModuleScopes; in backward, of the forward op. Empty outside of any
  std::string backward_node = {};  ///< "LogBackward0"; empty in forward
  std::string forward_op = {};     ///< in backward: the op whose gradient this is, where it can be told
  std::string source = {};  ///< of a copy or cast: the op that computed what was copied. Empty where none was seen
  std::vector<TracedTensor> inputs;
  std::vector<TracedTensor> outputs = {};

  /// A line of what, where and in which pass, then one line a tensor; ends with a line feed.
  std::string to_string() const;
};

struct FiniteTracerOptions {
  /// Ops to pass over, by name with or without overload: "aten::log", "aten::div.Tensor".
  TORCH_ARG(std::vector<std::string>, ignore_ops) = {};
  /// Called with the first op, on the thread and at the place where it ran: to print a stack trace,
  /// say. What it throws is lost: LibTorch swallows exceptions of observers. Use `check` to throw.
  TORCH_ARG(std::function<void(const NonFiniteOp&)>, on_first);
};

/// Watches every ATen op of its scope, forward and backward, for results with inf or NaN.
///
/// @code
/// mezzo::FiniteTracer tracer;
/// auto loss = model->forward(input);
/// tracer.check();  // throws, naming the op, its module and its inputs
/// loss.backward();
/// tracer.check();
/// @endcode
///
/// Finds the op that makes NaN of inputs without NaN, or inf of finite ones; docs/guide.md, "When a
/// NaN appears", says what is not reported. Changes no value, no random number and no gradient.
///
/// Traces its own thread, on which it must also be destroyed, and the threads of the autograd
/// engine that work for it. Scopes nest; the innermost traces.
///
/// Waits for the device at each op until it has found one, and costs next to nothing from then on.
/// Does not fit the capture of a CUDA graph.
class FiniteTracer {
 public:
  [[nodiscard]] explicit FiniteTracer(FiniteTracerOptions options = {});
  ~FiniteTracer();
  FiniteTracer(const FiniteTracer&) = delete;
  FiniteTracer& operator=(const FiniteTracer&) = delete;

  /// Whether one traces this thread: for code that fuses operations which a tracer should see.
  static bool is_active();

  /// The first op found so far. Never syncs.
  std::optional<NonFiniteOp> first() const;

  /// Never syncs.
  /// @throws c10::Error  with the op's `to_string`, if one was found
  void check() const;

 private:
  class Trace;
  struct Scope;
  std::shared_ptr<Trace> trace_;
  std::unique_ptr<Scope> scope_;
};

}  // namespace mezzo
