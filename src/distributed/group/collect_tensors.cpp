#include "distributed/group/collect_tensors.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>
#include <vector>

#include "distributed/group/tensor_bucket.h"

namespace mezzo::distributed {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

/// Names, dtypes and shapes, for `make_room`.
std::string describe(const Tensors& tensors) {
  std::string text;
  for (const auto& [name, tensor] : tensors) {
    text += fmt::format("{} {} {} {} {}", name.size(), name, static_cast<int>(tensor.scalar_type()), tensor.dim(),
                        fmt::join(tensor.sizes(), " "));
    text += '\n';
  }
  return text;
}

Tensors make_room(const std::string& description, const at::Device& device) {
  Tensors tensors;
  std::istringstream in(description);
  size_t length = 0;
  while (in >> length) {
    std::string name(length, ' ');
    int dtype = 0;
    size_t dim = 0;
    in.get();  // the space
    in.read(name.data(), static_cast<std::streamsize>(length));
    in >> dtype >> dim;
    std::vector<int64_t> sizes(dim);
    for (int64_t& size : sizes) {
      in >> size;
    }
    tensors[name] = at::empty(sizes, at::TensorOptions(device).dtype(static_cast<at::ScalarType>(dtype)));
  }
  return tensors;
}

std::vector<TensorBucket> buckets_of(const Tensors& tensors, const at::Device& device, int64_t most_bytes) {
  std::vector<at::Tensor> values;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.numel() > 0) {
      values.push_back(tensor.to(device));
    }
  }
  return make_buckets(values, most_bytes);
}

}  // namespace

Tensors collect_tensors(ProcessGroup& group, const Tensors& mine, int to, int64_t most_bytes) {
  const at::Device device = group.options().device();
  const auto descriptions = group.all_gather(describe(mine));
  if (group.rank() != to) {
    group.guard([&] {
      for (const TensorBucket& bucket : buckets_of(mine, device, most_bytes)) {
        std::vector<at::Tensor> message{bucket.packed()};
        group.c10d()->send(message, to, /*tag=*/0)->wait();
      }
    });
    return {};
  }
  Tensors all = mine;
  for (int other = 0; other < group.size(); ++other) {
    if (other == to) {
      continue;
    }
    const Tensors theirs = make_room(descriptions[other], device);
    group.guard([&] {
      for (const TensorBucket& bucket : buckets_of(theirs, device, most_bytes)) {
        std::vector<at::Tensor> message{bucket.room()};
        group.c10d()->recv(message, other, /*tag=*/0)->wait();
        bucket.unpack(message.front());
      }
    });
    all.insert(theirs.begin(), theirs.end());
  }
  return all;
}

}  // namespace mezzo::distributed
