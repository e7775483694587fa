#include "amp/value_origins.h"

#include <algorithm>

namespace mezzo {

void ValueOrigins::wrote(const std::string& op, const at::Tensor& values) {
  if (!values.has_storage()) {
    return;
  }
  const auto& storage = values.storage();
  origins_.insert_or_assign(storage.unsafeGetStorageImpl(), Origin{.storage = storage.getWeakStorageImpl(), .op = &op});
  drop_the_dead();
}

void ValueOrigins::copied(const at::Tensor& from, const at::Tensor& to) {
  if (const std::string* op = find(from)) {
    wrote(*op, to);
  } else if (to.has_storage()) {
    origins_.erase(to.storage().unsafeGetStorageImpl());
  }
}

std::string ValueOrigins::of(const at::Tensor& values) const {
  const std::string* op = find(values);
  return op != nullptr ? *op : "";
}

const std::string* ValueOrigins::find(const at::Tensor& values) const {
  if (!values.has_storage()) {
    return nullptr;
  }
  const auto found = origins_.find(values.storage().unsafeGetStorageImpl());
  return found == origins_.end() ? nullptr : found->second.op;
}

void ValueOrigins::drop_the_dead() {
  if (origins_.size() > most_) {
    std::erase_if(origins_, [](const auto& entry) { return entry.second.storage.expired(); });
    most_ = std::max<size_t>(most_, 2 * origins_.size());
  }
}

}  // namespace mezzo
