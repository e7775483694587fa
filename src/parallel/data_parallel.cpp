#include "mezzo/parallel/data_parallel.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/cuda.h>

#include "mezzo/amp/autocast_state.h"
#include "parallel/replicas.h"
#include "parallel/worker_threads.h"

namespace mezzo::detail {
namespace {

DataParallelOptions checked(DataParallelOptions options) {
  if (options.devices().empty()) {
    for (c10::DeviceIndex i = 0; i < torch::cuda::device_count(); ++i) {
      options.devices().emplace_back(c10::kCUDA, i);
    }
  }
  TORCH_CHECK_VALUE(!options.devices().empty(), "DataParallel: there is no CUDA device; name the devices to use");
  TORCH_CHECK_VALUE(options.dim() >= 0, "DataParallel: dim must not be negative, got ", options.dim());
  if (!options.output_device()) {
    options.output_device(options.devices()[0]);
  }
  return options;
}

/// Regions that a replica opens and closes are none of the outermost, so none clears the cache of cast weights while
/// others use it: whether a weight is cast once or twice must not be a matter of timing.
class OneRegionForAll {
 public:
  OneRegionForAll() { at::autocast::increment_nesting(); }
  ~OneRegionForAll() {
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
  }
  OneRegionForAll(const OneRegionForAll&) = delete;
  OneRegionForAll& operator=(const OneRegionForAll&) = delete;
};

[[noreturn]] void rethrow(const std::exception_ptr& error, size_t replica, const c10::Device& device) {
  const auto where = c10::str("in replica ", replica, " on ", device);
  try {
    std::rethrow_exception(error);
  } catch (c10::Error& mine) {
    mine.add_context(where);
    throw;
  } catch (const std::exception& other) {
    TORCH_CHECK(false, other.what(), " (", where, ")");
  }
}

}  // namespace

DataParallelBase::DataParallelBase(const std::shared_ptr<torch::nn::Module>& module,
                                   DataParallelOptions options,
                                   Replicate replicate)
    : options_(checked(std::move(options))),
      replicas_(std::make_unique<Replicas>(module, options_.devices(), std::move(replicate))),
      threads_(std::make_unique<WorkerThreads>()) {}

DataParallelBase::~DataParallelBase() = default;

void DataParallelBase::replicate() { replicas_->clear(); }

BatchDivision DataParallelBase::divide(const std::vector<at::Tensor>& tensors) const {
  return {tensors, options_.devices(), options_.dim()};
}

std::vector<std::shared_ptr<torch::nn::Module>> DataParallelBase::take_replicas(size_t count) {
  return replicas_->take(count);
}

void DataParallelBase::run(size_t count, const std::function<void(size_t)>& work) {
  const OneRegionForAll one_region;
  const auto autocast = AutocastState::current();
  const at::ThreadLocalState thread_state;
  std::vector<c10::Stream> streams;
  for (const auto& device : options_.devices()) {
    streams.push_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  const auto errors = threads_->run(count, [&](size_t i) {
    const c10::StreamGuard on_stream(streams[i]);  // and its device
    if (i == 0) {
      return work(i);  // on the thread that called
    }
    const at::ThreadLocalStateGuard same_state(thread_state);
    const AutocastStateGuard same_autocast(autocast);
    work(i);
  });
  for (size_t i = 0; i < count; ++i) {
    if (errors[i]) {
      rethrow(errors[i], i, options_.devices()[i]);
    }
  }
}

void throw_not_cloneable(const torch::nn::Module& module, const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  TORCH_CHECK_VALUE(false, "DataParallel: cannot clone ", module.name(),
                    "; derive it from torch::nn::Cloneable, or pass a function that makes replicas (",
                    c10_error != nullptr ? c10_error->what_without_backtrace() : error.what(), ")");
}

}  // namespace mezzo::detail
