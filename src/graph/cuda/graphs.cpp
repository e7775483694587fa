#include "graph/cuda/graphs.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/util/Exception.h>

#include <functional>
#include <string>
#include <utility>

namespace mezzo::cuda {
namespace {

using Pool = std::shared_ptr<const at::MempoolId_t>;

class Graph final : public DeviceGraph {
 public:
  Graph(c10::Device device, Pool pool) : device_(device), pool_(std::move(pool)), graph_(kKeepsGraph) {}
  ~Graph() override {
    if (is_recording_) {
      abandon();
    }
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void begin() override {
    make_room();
    is_recording_ = true;
    // Other threads may go on with theirs, such as pinning the memory of the next batch.
    graph_.capture_begin(*pool_, cudaStreamCaptureModeThreadLocal);
  }

  void end() override {
    try {
      graph_.capture_end();
    } catch (...) {
      abandon();
      throw;
    }
    is_recording_ = false;
    instantiate();
  }

  void replay() override { graph_.replay(); }

 private:
  /// CUDA tells by its words alone that memory for the graph is lacking.
  void instantiate() {
    try {
      graph_.instantiate();
    } catch (const c10::Error& error) {
      const std::string what = error.what_without_backtrace();
      if (what.find("out of memory") == what.npos) {
        throw;
      }
      throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, what);
    }
  }

  static void ignoring_errors(const std::function<void()>& call) noexcept {
    try {
      call();
    } catch (const std::exception&) {  // it was done before, or there is nobody to tell
    }
  }

  /// Ends a recording of which nothing is kept. Of one that CUDA found void, capture_end ends no
  /// more than the stream's part: allocations would go to the pool for ever.
  void abandon() noexcept {
    is_recording_ = false;
    const c10::DeviceGuard guard(device_);
    bool has_ended = false;
    ignoring_errors([&] {
      graph_.capture_end();
      has_ended = true;
    });
    if (!has_ended) {
      ignoring_errors([&] { c10::cuda::CUDACachingAllocator::endAllocateToPool(device_.index(), *pool_); });
      ignoring_errors([&] { at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(*pool_); });
      ignoring_errors([&] { c10::cuda::CUDACachingAllocator::releasePool(device_.index(), *pool_); });
      ignoring_errors([&] { at::getHostAllocator(at::kCUDA)->release_pool(*pool_); });
      ignoring_errors([&] { record_nothing(); });
    }
  }

  /// A recording needs about as much memory as the eager step before it left in the allocator's
  /// cache, but cannot take it from there.
  void make_room() const {
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device_.index());
    const int64_t cached = stats.reserved_bytes[kAll].current - stats.allocated_bytes[kAll].current;
    size_t available = 0, total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&available, &total));
    if (available < static_cast<size_t>(cached)) {
      c10::cuda::CUDACachingAllocator::emptyCache();
    }
  }

  /// LibTorch 2.11 tells its generators of a recording's end only if the recording was good: until then they would
  /// refuse to draw.
  static void record_nothing() {
    const auto something = at::zeros({1}, at::kCUDA);
    at::cuda::CUDAGraph graph(kKeepsGraph);
    graph.capture_begin(at::cuda::graph_pool_handle(), cudaStreamCaptureModeThreadLocal);
    something.fill_(0);
    graph.capture_end();
  }

  /// A separate call instantiates. capture_end would end the pool's use twice if instantiating failed.
  static constexpr bool kKeepsGraph = true;

  const c10::Device device_;
  const Pool pool_;
  at::cuda::CUDAGraph graph_;
  bool is_recording_ = false;
};

class Graphs final : public DeviceGraphs {
 public:
  explicit Graphs(c10::Device device) : device_(device) {}

  /// The allocator takes a pool's name as long as a graph uses it.
  std::unique_ptr<DeviceGraph> new_graph(bool /*goes_on*/) override {
    auto pool = pool_.lock();
    if (!pool) {
      pool = std::make_shared<const at::MempoolId_t>(at::cuda::graph_pool_handle());
      pool_ = pool;
    }
    return std::make_unique<Graph>(device_, std::move(pool));
  }

  bool is_recording() const override {
    return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
  }

 private:
  const c10::Device device_;
  std::weak_ptr<const at::MempoolId_t> pool_;
};

}  // namespace

std::unique_ptr<DeviceGraphs> make_graphs(c10::Device device) { return std::make_unique<Graphs>(device); }

}  // namespace mezzo::cuda
