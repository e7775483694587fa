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

/// A tensor seen by an op: the range of its finite values, and the counts of the others.
struct TracedTensor {
  std::string name;                   ///< of the argument, as in the op's schema; "output" for a result
  std::vector<int64_t> shape;         ///< empty for a 0-dim tensor
  at::ScalarType dtype = at::kFloat;  ///< of the tensor, before any cast
  double min = 0;                     ///< of the finite values; NaN if there are none
  double max = 0;                     ///< of the finite values; NaN if there are none
  int64_t num_inf = 0;                ///< +inf
  int64_t num_minus_inf = 0;          ///< -inf
  int64_t num_nan = 0;                ///< NaN

  /// Whether all values are finite.
  bool is_finite() const { return num_inf == 0 && num_minus_inf == 0 && num_nan == 0; }
};

/// The op with which non-finite values began.
struct NonFiniteOp {
  /// false: an argument already held NaN or +inf (a gradient: or -inf), and no op that the tracer
  /// saw had produced the value. The cause is a bad input or parameter, or a kernel outside ATen.
  bool produced_here = true;
  std::string op;                  ///< "aten::log", "aten::add.Tensor"; or a backward node that received bad gradients
  bool in_backward = false;        ///< the op ran in a backward pass
  std::string module = {};         ///< path of ModuleScopes; in backward, of the forward op. Empty outside a scope
  std::string backward_node = {};  ///< "LogBackward0"; empty in forward
  std::string forward_op = {};     ///< in backward: the op whose gradient this is, if known
  std::string source = {};         ///< of a copy or cast: the op that computed the copied tensor. Empty if unknown
  std::vector<TracedTensor> inputs;        ///< arguments of the op
  std::vector<TracedTensor> outputs = {};  ///< results of the op

  /// One line with op, module and pass, then one line per tensor. Ends with a line feed.
  std::string to_string() const;
};

/// Options of FiniteTracer.
struct FiniteTracerOptions {
  /// Ops to ignore, by name with or without overload: "aten::log", "aten::div.Tensor".
  TORCH_ARG(std::vector<std::string>, ignore_ops) = {};
  /// Called with the first op, on its thread, while it runs: for example to print a stack trace.
  /// Its exceptions are lost, because LibTorch swallows exceptions of observers. Use `check` to
  /// throw.
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
/// Finds the op that turns inputs without NaN into NaN, or finite inputs into inf. See
/// docs/guide.md, "When a NaN appears", for the cases that are not reported. Changes no value, no
/// random number and no gradient.
///
/// Traces its thread, and the threads of the autograd engine that work for it. Destroy it on the
/// same thread. Scopes nest; only the innermost traces.
///
/// Waits for the device at each op until it has found one. After that it costs almost nothing.
/// Cannot be used while a CUDA graph is captured.
class FiniteTracer {
 public:
  /// Starts tracing on this thread.
  [[nodiscard]] explicit FiniteTracer(FiniteTracerOptions options = {});
  ~FiniteTracer();
  FiniteTracer(const FiniteTracer&) = delete;
  FiniteTracer& operator=(const FiniteTracer&) = delete;

  /// Whether a tracer is active on this thread. Code that fuses operations should then run them one
  /// by one.
  static bool is_active();

  /// The first op found so far. Never syncs.
  std::optional<NonFiniteOp> first() const;

  /// Throws if an op was found. Never syncs.
  /// @throws c10::Error  with the op's `to_string`, if one was found
  void check() const;

 private:
  class Trace;
  struct Scope;
  std::shared_ptr<Trace> trace_;
  std::unique_ptr<Scope> scope_;
};

}  // namespace mezzo
