#include "mezzo/graph/graphed_step.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "amp/op_watchers.h"
#include "amp/policy_region.h"
#include "graph/device_graph.h"
#include "graph/step_recording.h"
#include "graph/used_memory.h"
#include "memory/device_copy.h"
#include "memory/stream_order.h"
#include "mezzo/amp/finite_tracer.h"

namespace mezzo {
namespace {

using Tensors = GraphedStep::Tensors;

/// In an autocast region around the call, this thread keeps no more casts until the region ends. A graph would read an
/// old cast for ever, and the region would go on with casts of weights that a replay has changed. LibTorch's cache of
/// casts belongs to all threads, so it is not emptied.
void keep_no_casts(c10::DeviceType type) {
  at::autocast::increment_nesting();
  const bool is_in_region = at::autocast::decrement_nesting() > 0;
  if (is_in_region || at::autocast::is_autocast_enabled(type)) {
    at::autocast::set_autocast_cache_enabled(false);
  }
}

/// The stream of one GraphedStep, or of several if LibTorch's pool has no more. Then one call at a time uses it: a
/// recording takes all work of its stream, from any thread.
struct StepStream {
  const c10::Stream stream;
  std::recursive_mutex mutex = {};  // recursive, as a step may call another
};

std::shared_ptr<StepStream> take_stream(c10::Device device) {
  constexpr int kPooledStreams = 32;  // of CUDA, which hands them out in turn
  static std::mutex mutex;
  static auto* const taken = new std::unordered_map<c10::Stream, std::weak_ptr<StepStream>>;
  const std::lock_guard lock(mutex);
  std::shared_ptr<StepStream> found;
  for (int i = 0; i <= kPooledStreams; ++i) {  // one more, so that the next step without its own shares another
    const auto stream = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
    auto& user = (*taken)[stream];
    found = user.lock();
    if (!found) {
      found = std::make_shared<StepStream>(stream);
      user = found;
      break;
    }
  }
  return found;
}

/// Makes the step's stream current while this lives. It follows the caller's earlier work, and the caller's later work
/// follows it.
class OnStream {
 public:
  explicit OnStream(StepStream& of_step)
      : lock_(of_step.mutex),
        stream_(of_step.stream),
        caller_(c10::impl::VirtualGuardImpl(stream_.device_type()).getStream(stream_.device())) {
    put_in_order(caller_, stream_);
    guard_.reset_stream(stream_);
  }
  ~OnStream() {
    try {
      put_in_order(stream_, caller_);
    } catch (const c10::Error&) {  // of a device that is lost, which says so again
    }
  }
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

  /// The caller will read these, and free them whenever it likes.
  void hand_over(const Tensors& tensors) const {
    for (const at::Tensor& tensor : tensors) {
      if (tensor.defined() && tensor.device() == stream_.device() && stream_ != caller_) {
        tensor.record_stream(caller_);
      }
    }
  }

 private:
  const std::lock_guard<std::recursive_mutex> lock_;
  const c10::Stream stream_, caller_;
  c10::OptionalStreamGuard guard_;
};

Tensors detached(const Tensors& tensors) {
  Tensors all;
  for (const at::Tensor& tensor : tensors) {
    all.push_back(tensor.defined() ? tensor.detach() : tensor);
  }
  return all;
}

/// With strides that a buffer can have, too, so that kernels do the same with both.
Tensors without_gaps(const Tensors& inputs) {
  Tensors all;
  for (const at::Tensor& input : inputs) {
    const bool as_it_is = !input.defined() || input.layout() != at::kStrided || input.is_non_overlapping_and_dense();
    all.push_back(as_it_is ? input : input.contiguous());
  }
  return all;
}

/// What decides on the kernels of a step: the caller's modes, and what inputs look like. Each list comes after its
/// length, so that different calls have different keys.
using Key = std::vector<int64_t>;

Key key_of(const Tensors& inputs, at::IntArrayRef numbers, c10::DeviceType type) {
  Key key{static_cast<int64_t>(at::autocast::is_autocast_enabled(type)),
          static_cast<int64_t>(at::autocast::get_autocast_dtype(type)),
          static_cast<int64_t>(at::autocast::is_autocast_cache_enabled()),
          static_cast<int64_t>(c10::GradMode::is_enabled()),
          static_cast<int64_t>(c10::InferenceMode::is_enabled()),
          static_cast<int64_t>(numbers.size()),
          static_cast<int64_t>(inputs.size())};
  key.insert(key.end(), numbers.begin(), numbers.end());
  for (const at::Tensor& input : inputs) {
    if (!input.defined()) {
      key.push_back(-1);
      continue;
    }
    key.push_back(static_cast<int64_t>(input.scalar_type()));
    key.push_back(input.dim());
    key.insert(key.end(), input.sizes().begin(), input.sizes().end());
    key.insert(key.end(), input.strides().begin(), input.strides().end());
  }
  return key;
}

[[noreturn]] void throw_not_recorded(std::string_view why) {
  TORCH_CHECK(false, "GraphedStep: the step cannot be recorded: ", why.substr(0, why.find('\n')),
              ". The device has done nothing. A recorded step must not wait for the device or read from it, as item(), "
              "cpu() and StepResult::stepped() do. Return tensors and read them after the call, or set "
              "GraphedStepOptions().enabled(false).");
}

}  // namespace

/// The calls with inputs of one kind.
struct GraphedStep::Bucket {
  int64_t warmed_up = 0, last_used = 0;
  std::string moved;                  ///< the tensor whose move ended the last graph
  Tensors inputs, outputs;            ///< the memory that the graph reads and writes
  UsedMemory used;                    ///< all else that it reads and writes, and did not allocate
  std::optional<RecordedStep> graph;  ///< nullopt until it is recorded; goes first, since it uses them
};

class GraphedStep::Graphs {
 public:
  explicit Graphs(c10::Device device, std::unique_ptr<DeviceGraphs> graphs)
      : stream(take_stream(device)), of_device(std::move(graphs)) {}

  const std::shared_ptr<StepStream> stream;
  const std::unique_ptr<DeviceGraphs> of_device;
  std::map<Key, Bucket> buckets;
  int64_t calls = 0;
  bool has_warned_of_move = false;

  Bucket& bucket_of(Key key) {
    constexpr int64_t kMostWithoutGraph = 1024;  // as GraphedStepOptions says
    const auto [at, is_new] = buckets.try_emplace(std::move(key));
    at->second.last_used = ++calls;
    if (is_new) {
      drop_oldest(/*with_graph=*/false, kMostWithoutGraph);
    }
    return at->second;
  }

  /// Of the buckets with a graph, or without, the one that was not used for the longest time, if there are more than
  /// `most`. @return whether it dropped one
  bool drop_oldest(bool with_graph, int64_t most) {
    int64_t count = 0;
    auto oldest = buckets.end();
    for (auto at = buckets.begin(); at != buckets.end(); ++at) {
      if (at->second.graph.has_value() == with_graph) {
        ++count;
        oldest = oldest == buckets.end() || at->second.last_used < oldest->second.last_used ? at : oldest;
      }
    }
    if (count <= most) {
      return false;
    }
    buckets.erase(oldest);
    return true;
  }
};

GraphedStep::GraphedStep(c10::Device device, Step step, GraphedStepOptions options)
    : device_(device.is_cpu() || device.has_index() ? device : c10::impl::VirtualGuardImpl(device.type()).getDevice()),
      step_(std::move(step)),
      options_(std::move(options)) {
  TORCH_CHECK_VALUE(step_, "GraphedStep: there is no step to call.");
  TORCH_CHECK_VALUE(options_.warmup_steps() >= 1, "GraphedStep: warmup_steps must be at least 1, got ",
                    options_.warmup_steps(), ": the first step makes the optimizer's state.");
  TORCH_CHECK_VALUE(options_.max_graphs() >= 1, "GraphedStep: max_graphs must be at least 1, got ",
                    options_.max_graphs(), ". To run eagerly, set enabled to false.");
  if (auto graphs = make_device_graphs(device_)) {
    graphs_ = std::make_unique<Graphs>(device_, std::move(graphs));
  }
}

GraphedStep::~GraphedStep() = default;

bool GraphedStep::is_available(c10::Device device) { return make_device_graphs(device) != nullptr; }

void GraphedStep::reset() {
  if (graphs_) {
    graphs_->buckets.clear();
  }
}

/// What keeps this call from a graph, whatever its shapes; empty if nothing does.
std::string GraphedStep::why_eager(const Tensors& inputs) const {
  if (!options_.enabled()) {
    return "GraphedStepOptions().enabled is false";
  }
  if (!graphs_) {
    return c10::str("there are no graphs for ", c10::DeviceTypeName(device_.type(), /*lower_case=*/true),
                    device_.is_cuda() ? ", without which this mezzo was built" : "");
  }
  if (FiniteTracer::is_active()) {
    return "a FiniteTracer looks at every op";
  }
  if (!PolicyRegion::open_device_types().empty()) {
    return "an AutocastGuard with an op policy or a CastLog looks at every op";
  }
  if (torch::autograd::AnomalyMode::is_enabled()) {
    return "autograd's anomaly mode is on";
  }
  if (graphs_->of_device->is_recording()) {
    return "the current stream is being recorded already";
  }
  for (const at::Tensor& input : inputs) {
    if (input.defined() && input.layout() != at::kStrided) {
      return c10::str("an input is ", input.layout(), ", not strided");
    }
  }
  return {};
}

Tensors GraphedStep::operator()(const Tensors& inputs, at::IntArrayRef numbers) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    TORCH_CHECK_VALUE(!inputs[i].defined() || !inputs[i].requires_grad(), "GraphedStep: input ", i,
                      " requires a gradient, which no replay would give it. Detach it, or compute it in the step.");
  }
  const c10::DeviceGuard guard(device_);
  keep_no_casts(device_.type());
  const auto usable = without_gaps(inputs);
  was_replayed_ = false;
  eager_reason_.clear();
  auto reason = why_eager(usable);
  if (reason.empty()) {
    return run(usable, numbers);
  }
  if (!has_warned_ && options_.enabled() && !device_.is_cpu()) {
    has_warned_ = true;
    TORCH_WARN("GraphedStep: runs eagerly: ", reason, ".");
  }
  if (!graphs_ || graphs_->of_device->is_recording()) {
    return run_eagerly(usable, std::move(reason));
  }
  const OnStream on_stream(*graphs_->stream);
  auto outputs = run_eagerly(usable, std::move(reason));
  on_stream.hand_over(outputs);
  return outputs;
}

Tensors GraphedStep::run_eagerly(const Tensors& inputs, std::string reason) {
  Tensors there;
  for (const at::Tensor& input : inputs) {
    there.push_back(copy_to(input, device_));
  }
  auto outputs = detached(step_(there));
  ++counts_.eager;
  eager_reason_ = std::move(reason);
  return outputs;
}

/// A call that may have a graph: warm-up, or a recording and its replay, or a replay.
Tensors GraphedStep::run(const Tensors& inputs, at::IntArrayRef numbers) {
  const OnStream on_stream(*graphs_->stream);
  Bucket& bucket = graphs_->bucket_of(key_of(inputs, numbers, device_.type()));
  if (bucket.graph) {
    drop_if_moved(bucket);
  }
  if (!bucket.graph && bucket.warmed_up < options_.warmup_steps()) {
    take_warm_up_once_more();
    auto outputs = run_eagerly(inputs, c10::str("warm-up, call ", bucket.warmed_up + 1, " of ", options_.warmup_steps(),
                                                " of these shapes", bucket.moved.empty() ? "" : ", since ",
                                                bucket.moved, bucket.moved.empty() ? "" : ", has moved"));
    bucket.warmed_up += take_warm_up_once_more() ? 0 : 1;
    on_stream.hand_over(outputs);
    return outputs;
  }
  if (!bucket.graph) {
    record(bucket, inputs);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined()) {
      copy_into(bucket.inputs[i], inputs[i]);
    }
  }
  bucket.graph->replay();
  ++counts_.replayed;
  was_replayed_ = true;
  on_stream.hand_over(bucket.outputs);
  return detached(bucket.outputs);  // tensors of the caller's own, on the same memory
}

/// Drops a graph whose memory was freed or replaced. It warms up again, as an optimizer may make its state anew.
void GraphedStep::drop_if_moved(Bucket& bucket) {
  bucket.moved = bucket.used.moved();
  if (bucket.moved.empty()) {
    return;
  }
  if (!std::exchange(graphs_->has_warned_of_move, true)) {
    TORCH_WARN("GraphedStep: a graph is recorded again, since ", bucket.moved,
               ", has moved. Change tensors in place between calls to keep graphs.");
  }
  bucket.graph.reset();
  bucket.inputs.clear();
  bucket.outputs.clear();
  bucket.used = {};
  bucket.warmed_up = 0;
}

void GraphedStep::record(Bucket& bucket, const Tensors& inputs) {
  if (graphs_->drop_oldest(/*with_graph=*/true, options_.max_graphs() - 1) && ++counts_.dropped == 1 &&
      options_.warn_on_drop()) {
    TORCH_WARN(
        "GraphedStep: inputs have more than max_graphs = ", options_.max_graphs(),
        " combinations of shapes, so graphs are dropped and recorded again. Pad to fewer shapes, or raise max_graphs.");
  }
  Tensors buffers;
  for (const at::Tensor& input : inputs) {
    buffers.push_back(
        input.defined() ? at::empty_strided(input.sizes(), input.strides(), input.options().device(device_)) : input);
  }
  Tensors outputs;
  const auto watchers = op_watchers_begun();
  UsedMemory used;
  RecordedStep graph;
  try {
    StepRecording recording(*graphs_->of_device);
    MemoryWatch watch;  // from here on, since LibTorch minds the memory of its generators itself
    outputs = detached(step_(detached(buffers)));
    for (size_t i = 0; i < outputs.size(); ++i) {
      TORCH_CHECK(!outputs[i].defined() || outputs[i].device() == device_, "output ", i, " is on ", outputs[i].device(),
                  ", so a replay does not change it");
    }
    TORCH_CHECK(
        op_watchers_begun() == watchers,
        "it opened a CastLog or a FiniteTracer, and neither sees replays; open it around the call, and the call "
        "runs eagerly");
    graph = recording.end();
    used = watch.stop(device_.type());
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    throw_not_recorded(error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw_not_recorded(error.what());
  }
  ++counts_.recorded;
  bucket.inputs = std::move(buffers);
  bucket.outputs = std::move(outputs);
  bucket.used = std::move(used);
  bucket.graph = std::move(graph);
}

}  // namespace mezzo
