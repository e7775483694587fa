#include "mezzo/amp/checkpoint.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <atomic>
#include <mutex>
#include <optional>

#include "amp/no_cast_cache.h"
#include "amp/random_state_guard.h"
#include "memory/recording_scope.h"
#include "mezzo/amp/autocast_state.h"

namespace mezzo {
namespace {

using torch::autograd::Engine;
using torch::autograd::SavedVariable;
using torch::autograd::SavedVariableHooks;

/// A tensor that backward will need: its properties, and the tensor after recomputation.
struct SavedTensor {
  explicit SavedTensor(const at::Tensor& tensor)
      : sizes(tensor.sym_sizes().vec()),
        dtype(tensor.scalar_type()),
        device(tensor.device()),
        version(tensor.unsafeGetTensorImpl()->version_counter()),
        saved_version(version.enabled() ? version.current_version() : 0) {}
  bool looks_like(const at::Tensor& tensor) const {
    return tensor.sym_sizes() == sizes && tensor.scalar_type() == dtype && tensor.device() == device;
  }
  const std::vector<c10::SymInt> sizes;
  const at::ScalarType dtype;
  const c10::Device device;
  const c10::VariableVersion version;  // shared with the tensor that was dropped
  const uint32_t saved_version;
  at::Tensor recomputed;
};

}  // namespace

/// One call of a checkpointed function, and its repetitions in backward.
namespace detail {
class CheckpointFrame : public std::enable_shared_from_this<CheckpointFrame> {
 public:
  CheckpointFrame(const std::vector<at::Tensor>& inputs,
                  std::function<void(const std::vector<at::Tensor>&)> recompute,
                  const CheckpointOptions& options)
      : recompute_(std::move(recompute)), autocast_(AutocastState::current().without_log()) {
    for (const at::Tensor& input : inputs) {
      inputs_.emplace_back(input, /*is_output=*/false);  // an outer checkpoint drops these as others
    }
    if (options.preserve_rng_state()) {
      TORCH_CHECK(!RecordingScope::is_open(),
                  "checkpoint: a graph cannot save the states of random-number generators; pass "
                  "CheckpointOptions().preserve_rng_state(false) inside a GraphedStep");
      random_.emplace().add(at::kCPU);
      for (const at::Tensor& input : inputs) {
        if (input.defined() && at::accelerator::isAccelerator(input.device().type())) {
          random_->add(input.device());
        }
      }
    }
  }

  std::shared_ptr<SavedTensor> drop(const at::Tensor& tensor) {
    auto saved = std::make_shared<SavedTensor>(tensor);
    saved_.push_back(saved);
    return saved;
  }

  /// A tensor of the repetition, which one of the first call may be waiting for.
  void give(const at::Tensor& tensor) {
    const size_t number = num_recomputed_++;
    const auto saved = number < saved_.size() ? saved_[number].lock() : nullptr;
    if (saved == nullptr) {
      return;  // is no longer wanted; or one too many, which is told at the end
    }
    TORCH_CHECK(saved->looks_like(tensor), "checkpoint: tensor ", number,
                " that backward needs has shape, dtype and device ", tensor.sym_sizes(), ", ", tensor.scalar_type(),
                ", ", tensor.device(), " when the function is called again. In the forward pass they were ",
                c10::SymIntArrayRef(saved->sizes), ", ", saved->dtype, ", ", saved->device, kAdvice);
    saved->recomputed = tensor;
  }

  at::Tensor recomputed(SavedTensor& saved) {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(!saved.version.enabled() || saved.version.current_version() == saved.saved_version,
                "checkpoint: a tensor of shape ", c10::SymIntArrayRef(saved.sizes),
                " that backward needs has been modified by an inplace operation after the function used it. Change a "
                "clone instead.");
    if (!saved.recomputed.defined()) {
      recompute();
    }
    TORCH_CHECK(saved.recomputed.defined(), "checkpoint: the function saved fewer tensors when it was called again",
                kAdvice);
    return std::exchange(saved.recomputed, {});
  }

  /// Whose hooks tensors get that this thread saves, and whether that is for a repetition.
  struct Turn {
    CheckpointFrame* frame = nullptr;
    bool is_repetition = false;
  };
  static thread_local Turn current;
  bool is_complete = false;

 private:
  static constexpr const char* kAdvice = ". It must compute the same in both calls: look for state that it changes.";

  void recompute();

  const std::function<void(const std::vector<at::Tensor>&)> recompute_;
  const AutocastState autocast_;
  std::vector<SavedVariable> inputs_;
  std::optional<RandomStates> random_;
  std::vector<std::weak_ptr<SavedTensor>> saved_;
  std::mutex mutex_;
  size_t num_recomputed_ = 0;
};
}  // namespace detail

using detail::CheckpointFrame;

thread_local CheckpointFrame::Turn CheckpointFrame::current;

namespace {

/// Of the first call: keeps nothing.
struct DroppingHooks : SavedVariableHooks {
  explicit DroppingHooks(std::shared_ptr<CheckpointFrame> frame_) : frame(std::move(frame_)) {}
  void call_pack_hook(const at::Tensor& tensor) override { saved = frame->drop(tensor); }
  at::Tensor call_unpack_hook() override { return frame->recomputed(*saved); }
  std::shared_ptr<CheckpointFrame> frame;
  std::shared_ptr<SavedTensor> saved;
};

/// Of a repetition, whose graph lives until it returns.
struct GivingHooks : SavedVariableHooks {
  explicit GivingHooks(CheckpointFrame& frame_) : frame(&frame_) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    kept = tensor.detach();
    frame->give(kept);
  }
  at::Tensor call_unpack_hook() override { return kept; }
  CheckpointFrame* frame;
  at::Tensor kept;
};

class RepetitionGuard {
 public:
  explicit RepetitionGuard(CheckpointFrame* frame)
      : outer_(std::exchange(CheckpointFrame::current, CheckpointFrame::Turn{frame, true})) {}
  ~RepetitionGuard() { CheckpointFrame::current = outer_; }
  RepetitionGuard(const RepetitionGuard&) = delete;
  RepetitionGuard& operator=(const RepetitionGuard&) = delete;

 private:
  const CheckpointFrame::Turn outer_;
};

/// Another engine, whose default hooks for saved tensors are the hooks of the running checkpoint. Only an engine can
/// give default hooks, and LibTorch's gives none without Python.
class HookingEngine final : public Engine {
 public:
  /// Unless the process's engine asks this one already, directly or through engines around it.
  static void install() {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    was_asked_ = false;
    Engine::get_default_engine().get_default_saved_variable_hooks();
    if (!was_asked_) {
      instance().inner_ = &Engine::get_default_engine();
      torch::autograd::set_default_engine_stub([]() -> Engine& { return instance(); });
    }
  }

  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    was_asked_ = true;
    const auto [frame, is_repetition] = CheckpointFrame::current;
    if (frame == nullptr) return inner().get_default_saved_variable_hooks();
    if (is_repetition) return std::make_unique<GivingHooks>(*frame);
    return std::make_unique<DroppingHooks>(frame->shared_from_this());
  }
  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs,
                                         bool keep_graph,
                                         bool create_graph,
                                         bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    return inner().execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& task,
      c10::intrusive_ptr<torch::autograd::Node> root,
      torch::autograd::InputBuffer&& buffer) override {
    return inner().execute_with_graph_task(task, std::move(root), std::move(buffer));
  }
  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return inner().make_anomaly_metadata();
  }
  void thread_on_exception(const std::shared_ptr<torch::autograd::GraphTask>& task,
                           const c10::intrusive_ptr<torch::autograd::Node>& node,
                           std::exception& error) override {
    inner().thread_on_exception(task, node, error);
  }

 private:
  static HookingEngine& instance() {
    static auto* const engine = new HookingEngine();  // never ends: threads of autograd may outlive main
    return *engine;
  }
  Engine& inner() const { return *inner_.load(); }

  static thread_local bool was_asked_;
  std::atomic<Engine*> inner_ = nullptr;
};

thread_local bool HookingEngine::was_asked_ = false;

}  // namespace

void CheckpointFrame::recompute() {
  std::vector<at::Tensor> inputs;
  for (const SavedVariable& input : inputs_) {
    inputs.push_back(input.unpack());
  }
  num_recomputed_ = 0;
  const RepetitionGuard repetition(this);
  const AutocastStateGuard autocast(autocast_);
  const NoCastCacheGuard no_cache;  // the region of the first call may have ended, and its cache with it
  const at::AutoGradMode with_grad(true);
  std::optional<RandomStateGuard> random;
  if (random_) {
    random.emplace(random_->now());
    random_->set();
  }
  recompute_(inputs);
  TORCH_CHECK(!is_complete || num_recomputed_ == saved_.size(), "checkpoint: the function saved ", num_recomputed_,
              " tensors for backward when it was called again. In the forward pass it saved ", saved_.size(), kAdvice);
}

struct detail::CheckpointScope::State {
  std::shared_ptr<CheckpointFrame> frame;
  CheckpointFrame::Turn outer;
};

detail::CheckpointScope::CheckpointScope(const std::vector<at::Tensor>& inputs,
                                         std::function<void(const std::vector<at::Tensor>&)> recompute,
                                         const CheckpointOptions& options) {
  HookingEngine::install();
  auto frame = std::make_shared<CheckpointFrame>(inputs, std::move(recompute), options);
  const CheckpointFrame::Turn turn{frame.get(), false};
  state_ = std::make_unique<State>(State{std::move(frame), std::exchange(CheckpointFrame::current, turn)});
}

detail::CheckpointScope::~CheckpointScope() {
  state_->frame->is_complete = true;
  CheckpointFrame::current = state_->outer;
}

}  // namespace mezzo
