#include "mezzo/amp/finite_tracer.h"

#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string_view>
#include <utility>

#include "amp/forward_ops.h"
#include "amp/op_watchers.h"
#include "amp/recorded_inputs.h"
#include "amp/thread_observer.h"
#include "amp/traced_op.h"
#include "amp/traced_tensor.h"
#include "amp/value_origins.h"
#include "mezzo/amp/module_scope.h"

namespace mezzo {
namespace {

/// The engine's range around a node, in which it also sums gradients to the shape of a parameter.
constexpr std::string_view kEngineRange = "autograd::engine::evaluate_function: ";

/// The tracer's own computations: seen by no observer, no autograd and no autocast.
struct Unobserved {
  at::DisableRecordFunctionGuard no_record;
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

/// A backward node that this thread runs, for as long as this lives.
class BackwardNode {
 public:
  BackwardNode(std::string the_name, uint64_t thread, int64_t number)
      : name(std::move(the_name)), forward_thread(thread), sequence_number(number), outer_(innermost_) {
    innermost_ = this;
  }
  ~BackwardNode() { innermost_ = outer_; }
  BackwardNode(const BackwardNode&) = delete;
  BackwardNode& operator=(const BackwardNode&) = delete;

  /// Null outside of backward.
  static const BackwardNode* innermost() { return innermost_; }

  /// The engine's range around a node knows less than the node, and goes on after it.
  void tell_range() const {
    if (outer_ != nullptr && outer_->name == name) {
      outer_->forward_thread = forward_thread;
      outer_->sequence_number = sequence_number;
    }
  }

  std::string name;
  uint64_t forward_thread;
  int64_t sequence_number;

 private:
  BackwardNode* outer_;
  static thread_local BackwardNode* innermost_;
};
thread_local BackwardNode* BackwardNode::innermost_ = nullptr;

/// The inputs of a call, for results that need explaining.
struct Call : at::ObserverContext {
  ~Call() override { leave(); }
  /// From now on the call is the innermost op of this thread, until `leave`.
  void enter() {
    outer = std::exchange(innermost, this);
    is_running = true;
  }
  void leave() {
    if (std::exchange(is_running, false)) {
      innermost = outer;
    }
  }

  const TracedOp* op = nullptr;
  std::vector<at::IValue> inputs;
  std::vector<TracedTensor> overwritten;  // the arguments changed in place, as they were before
  std::optional<BackwardNode> node;       // in place of an op
  const Call* outer = nullptr;            // the op that this one runs within, if any
  bool is_running = false;

  static thread_local const Call* innermost;
};
thread_local const Call* Call::innermost = nullptr;

struct Findings {
  bool inf = false;  // +inf or -inf
  bool plus_inf = false;
  bool nan = false;
};

Findings look_at(const std::vector<TracedTensor>& tensors) {
  Findings findings;
  for (const TracedTensor& tensor : tensors) {
    findings.inf |= tensor.num_inf > 0 || tensor.num_minus_inf > 0;
    findings.plus_inf |= tensor.num_inf > 0;
    findings.nan |= tensor.num_nan > 0;
  }
  return findings;
}

/// Calls `visit(argument, value)` for the arguments of a call.
template <class Visit>
void visit_arguments(const Call& call, const Visit& visit) {
  for (size_t i = 0; i < std::min(call.inputs.size(), call.op->arguments.size()); ++i) {
    visit(call.op->arguments[i], call.inputs[i]);
  }
}

/// Calls `visit(values)` for tensors that the op returned or changed in place.
template <class Visit>
void visit_results(const Call& call, const std::vector<at::IValue>& outputs, Visit&& visit) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (i >= call.op->returns_view.size() || !call.op->returns_view[i]) {
      visit_values(outputs[i], visit);
    }
  }
  visit_arguments(call, [&](const auto& argument, const at::IValue& value) {
    if (outputs.empty() && argument.is_written) {
      visit_values(value, visit);
    }
  });
}

/// The source of a copy.
at::Tensor copied_tensor(const Call& call) {
  at::Tensor copied;
  visit_arguments(call, [&](const auto& argument, const at::IValue& value) {
    if (!copied.defined() && !argument.is_written && value.isTensor()) {
      copied = value.toTensor();
    }
  });
  return copied;
}

std::vector<TracedTensor> describe_inputs(const Call& call) {
  auto inputs = call.overwritten;
  visit_arguments(call, [&](const auto& argument, const at::IValue& value) {
    if (!argument.is_written) {
      visit_values(value, [&](const at::Tensor& values) { inputs.push_back(describe(argument.name, values)); });
    }
  });
  return inputs;
}

}  // namespace

/// The state of one tracer. Outlives it while a call that it saw begin has not ended.
class FiniteTracer::Trace {
 public:
  explicit Trace(FiniteTracerOptions options) : options_(std::move(options)), ops_(options_.ignore_ops()) {}

  std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function);
  void end(at::ObserverContext& context, const at::RecordFunction& function);

  std::optional<NonFiniteOp> first() const {
    const std::lock_guard lock(mutex_);
    return first_;
  }

 private:
  void begin_node(Call& call, const at::RecordFunction& function);
  bool begin_op(Call& call, const at::RecordFunction& function);
  void judge(const Call& call, std::vector<TracedTensor> outputs);
  void found(NonFiniteOp op);
  std::string source_of(const Call& call);
  void note_origin(const Call& call, const at::Tensor& values);
  void place(NonFiniteOp& op) const;

  const FiniteTracerOptions options_;
  TracedOps ops_;
  mutable std::mutex mutex_;  // of all below
  ForwardOps forward_ops_;
  ValueOrigins origins_;
  std::optional<NonFiniteOp> first_;
  std::atomic<bool> origin_is_known_ = true;  // false once non-finite values were asked for, or came from an ignored op
  std::atomic<bool> is_done_ = false;
};

std::unique_ptr<at::ObserverContext> FiniteTracer::Trace::begin(const at::RecordFunction& function) {
  if (is_done_) {
    return nullptr;
  }
  auto call = std::make_unique<Call>();
  if (function.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    begin_node(*call, function);
    return call;
  }
  return begin_op(*call, function) ? std::move(call) : nullptr;
}

void FiniteTracer::Trace::begin_node(Call& call, const at::RecordFunction& function) {
  call.node.emplace(function.name(), function.forwardThreadId(), function.seqNr());
  const Unobserved unobserved;
  std::vector<TracedTensor> gradients;
  for (const at::IValue& input : recorded_inputs(function)) {
    visit_values(input, [&](const at::Tensor& values) { gradients.push_back(describe("gradient", values)); });
  }
  const auto received = look_at(gradients);
  if ((received.inf || received.nan) && origin_is_known_) {
    found({.produced_here = false, .op = function.name(), .inputs = std::move(gradients)});
  }
}

/// Returns whether the end of the call is of interest.
bool FiniteTracer::Trace::begin_op(Call& call, const at::RecordFunction& function) {
  call.op = ops_.find(function);
  if (call.op == nullptr) {
    const std::string_view name = function.name();
    if (name.starts_with(kEngineRange)) {
      call.node.emplace(std::string(name.substr(kEngineRange.size())), 0, -1);
    }
    return call.node.has_value();
  }
  if (BackwardNode::innermost() == nullptr) {
    const auto next = at::sequence_number::peek();
    const auto module = ModuleScope::current_path();
    const std::lock_guard lock(mutex_);
    const bool may_make_node = function.seqNr() >= 0;
    forward_ops_.begin(at::RecordFunction::currentThreadId(), next, *call.op, may_make_node, module);
  }
  if (call.op->is_silent) {
    return false;
  }
  const auto inputs = recorded_inputs(function);
  call.inputs.assign(inputs.begin(), inputs.end());
  const Unobserved unobserved;
  visit_arguments(call, [&](const auto& argument, const at::IValue& value) {
    if (argument.is_written && !argument.is_out) {
      visit_values(value,
                   [&](const at::Tensor& values) { call.overwritten.push_back(describe(argument.name, values)); });
    }
  });
  call.enter();
  return true;
}

void FiniteTracer::Trace::end(at::ObserverContext& context, const at::RecordFunction& function) {
  auto& call = static_cast<Call&>(context);
  if (call.node) {
    call.node->tell_range();
    call.node.reset();
    return;
  }
  call.leave();
  if (is_done_) {
    return;
  }
  const Unobserved unobserved;
  std::vector<TracedTensor> outputs;
  visit_results(call, function.outputs(), [&](const at::Tensor& values) {
    outputs.push_back(describe("output", values));
    note_origin(call, values);
  });
  if (const auto made = look_at(outputs); made.inf || made.nan) {
    judge(call, std::move(outputs));
  }
}

void FiniteTracer::Trace::note_origin(const Call& call, const at::Tensor& values) {
  const std::lock_guard lock(mutex_);
  if (const auto copied = call.op->is_copy ? copied_tensor(call) : at::Tensor(); copied.defined()) {
    origins_.copied(copied, values);
  } else {
    origins_.wrote(call.op->name, values);
  }
}

/// The op that computed what `call` copies; else the one within which it is copied, whose kernel
/// may have computed it out of sight.
std::string FiniteTracer::Trace::source_of(const Call& call) {
  if (const auto copied = copied_tensor(call); copied.defined()) {
    const std::lock_guard lock(mutex_);
    if (auto op = origins_.of(copied); !op.empty()) {
      return op;
    }
  }
  const Call* outer = call.outer;
  while (outer != nullptr && outer->op->is_copy) {
    outer = outer->outer;
  }
  return outer != nullptr ? outer->op->name : "";
}

/// Decides whether inf or NaN in `outputs` began here.
void FiniteTracer::Trace::judge(const Call& call, std::vector<TracedTensor> outputs) {
  const bool asked_for = std::any_of(call.inputs.begin(), call.inputs.end(), is_non_finite_number);
  const auto made = look_at(outputs);
  auto inputs = describe_inputs(call);
  const auto received = look_at(inputs);
  const bool produced = (made.nan && !received.nan) || (made.inf && !received.inf && !received.nan);

  if (call.op->is_ignored || asked_for) {
    const bool is_mask = !call.op->is_ignored && !made.nan && !made.plus_inf;
    origin_is_known_ = origin_is_known_ && (is_mask || !produced);
    return;
  }
  // An input of -inf alone is taken for a mask.
  if (produced || (origin_is_known_ && (received.nan || received.plus_inf))) {
    found({.produced_here = produced,
           .op = call.op->name,
           .source = call.op->is_copy ? source_of(call) : "",
           .inputs = std::move(inputs),
           .outputs = std::move(outputs)});
  }
}

/// Keeps the first.
void FiniteTracer::Trace::found(NonFiniteOp op) {
  if (is_done_.exchange(true)) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    place(op);
    first_ = op;
  }
  if (options_.on_first()) {
    options_.on_first()(op);
  }
}

void FiniteTracer::Trace::place(NonFiniteOp& op) const {
  const auto* node = BackwardNode::innermost();
  if (node == nullptr) {
    op.module = ModuleScope::current_path();
    return;
  }
  op.in_backward = true;
  op.backward_node = node->name;
  const auto origin = forward_ops_.find(node->forward_thread, static_cast<uint64_t>(node->sequence_number), node->name);
  op.forward_op = origin.op;
  op.module = origin.module;
}

/// Suspends an outer tracer of the thread while it lives.
struct FiniteTracer::Scope {
  using Observer = ThreadObserver<Trace>;

  explicit Scope(std::shared_ptr<Trace> trace) : suspended_handle(Observer::current_handle()) {
    if (suspended_handle != at::INVALID_CALLBACK_HANDLE) {
      at::disableCallback(suspended_handle);
    }
    observer.emplace(std::move(trace),
                     std::unordered_set{at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION});
    ++op_watchers_begun();
  }
  ~Scope() {
    observer.reset();
    if (suspended_handle != at::INVALID_CALLBACK_HANDLE) {
      at::reenableCallback(suspended_handle);
    }
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  const uint64_t suspended_handle;
  std::optional<Observer> observer;
};

FiniteTracer::FiniteTracer(FiniteTracerOptions options)
    : trace_(std::make_shared<Trace>(std::move(options))), scope_(std::make_unique<Scope>(trace_)) {}

FiniteTracer::~FiniteTracer() = default;

bool FiniteTracer::is_active() { return Scope::Observer::current() != nullptr; }

std::optional<NonFiniteOp> FiniteTracer::first() const { return trace_->first(); }

void FiniteTracer::check() const {
  const auto op = first();
  TORCH_CHECK(!op, "FiniteTracer: ", op->to_string());
}

}  // namespace mezzo
