#include "mezzo/distributed/data_parallel/distributed_sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Exception.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <numeric>

namespace mezzo::distributed {
namespace {

constexpr const char* kEpoch = "epoch";
constexpr const char* kPosition = "position";

std::vector<int64_t> whole_order(int64_t size, const DistributedSamplerOptions& options, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(size));
  if (!options.shuffle()) {
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  const auto generator = at::detail::createCPUGenerator(options.seed() + static_cast<uint64_t>(epoch));
  const auto permutation = at::randperm(size, generator, at::TensorOptions(at::kLong));
  std::copy_n(permutation.const_data_ptr<int64_t>(), size, order.begin());
  return order;
}

int64_t integer(torch::serialize::InputArchive& archive, const char* key) {
  at::Tensor value;
  archive.read(key, value, /*is_buffer=*/true);
  return value.item<int64_t>();
}

void write(torch::serialize::OutputArchive& archive, const char* key, int64_t value) {
  archive.write(key, at::scalar_tensor(value, at::kLong), /*is_buffer=*/true);
}

}  // namespace

DistributedSampler::DistributedSampler(int64_t dataset_size, DistributedSamplerOptions options)
    : dataset_size_(dataset_size), options_(options) {
  TORCH_CHECK_VALUE(dataset_size >= 0, "DistributedSampler: the data set cannot have ", dataset_size, " elements");
  TORCH_CHECK_VALUE(options.rank() >= 0 && options.rank() < options.num_replicas(),
                    "DistributedSampler: rank must be in [0, num_replicas), got rank ", options.rank(), " of ",
                    options.num_replicas());
  TORCH_CHECK_VALUE(options.padding() || !options.drop_last(),
                    "DistributedSampler: without padding every index occurs once, so drop_last must be false");
  reset();
}

int64_t DistributedSampler::size() const {
  const int64_t ranks = options_.num_replicas();
  if (options_.drop_last()) {
    return dataset_size_ / ranks;
  }
  const int64_t first_without = options_.padding() ? 0 : options_.rank();
  return (dataset_size_ - first_without + ranks - 1) / ranks;
}

std::vector<int64_t> DistributedSampler::indices() const {
  const auto order = whole_order(dataset_size_, options_, epoch_);
  std::vector<int64_t> share;
  const int64_t count = size();
  for (int64_t i = 0; i < count; ++i) {  // padding goes through the order again, as often as it takes
    share.push_back(order[static_cast<size_t>((options_.rank() + i * options_.num_replicas()) % dataset_size_)]);
  }
  return share;
}

void DistributedSampler::reset(std::optional<size_t> new_size) {
  dataset_size_ = new_size ? static_cast<int64_t>(*new_size) : dataset_size_;
  order_ = indices();
  position_ = 0;
}

std::optional<std::vector<size_t>> DistributedSampler::next(size_t batch_size) {
  const size_t end = std::min(order_.size(), position_ + batch_size);
  if (position_ == end) {
    return std::nullopt;
  }
  std::vector<size_t> batch;
  for (; position_ < end; ++position_) {
    batch.push_back(static_cast<size_t>(order_[position_]));
  }
  return batch;
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  write(archive, kEpoch, epoch_);
  write(archive, kPosition, static_cast<int64_t>(position_));
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  epoch_ = integer(archive, kEpoch);
  const auto position = static_cast<size_t>(integer(archive, kPosition));
  reset();
  TORCH_CHECK_VALUE(position <= order_.size(), "DistributedSampler: the archive is at position ", position,
                    ", but this rank's share has ", order_.size(), "; load it with as many ranks and data as it had");
  position_ = position;
}

}  // namespace mezzo::distributed
