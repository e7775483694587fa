#include <c10/util/Exception.h>
#include <torch/serialize/archive.h>

#include <charconv>
#include <map>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "mezzo/optim/optimizer.h"

// An archive holds "kind", the optimizer's name; "groups", their count; an archive for each, named
// by its number, with its options and the numbers of its parameters; and in "state" one for each
// parameter that has any, named by its number, with a tensor a slot.

namespace mezzo {
namespace {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

c10::IValue to_value(const TorchOption& option) {
  if (const auto* pair = std::get_if<std::pair<double, double>>(&option)) {
    return c10::List<double>({pair->first, pair->second});
  }
  const auto* flag = std::get_if<bool>(&option);
  return flag != nullptr ? c10::IValue(*flag) : c10::IValue(std::get<double>(option));
}

TorchOption to_option(const std::string& key, const c10::IValue& value) {
  if (value.isBool()) {
    return value.toBool();
  }
  if (value.isDouble()) {
    return value.toDouble();
  }
  TORCH_CHECK_VALUE(value.isDoubleList() && value.toDoubleVector().size() == 2, "Optimizer: option ", key,
                    " of the archive to load is none that mezzo writes");
  const auto pair = value.toDoubleVector();
  return std::pair(pair[0], pair[1]);
}

c10::IValue read(InputArchive& archive, const std::string& key) {
  c10::IValue value;
  TORCH_CHECK_VALUE(archive.try_read(key, value), "Optimizer: the archive to load has no entry '", key,
                    "'; pass one that torch::save made of one of mezzo's optimizers");
  return value;
}

int64_t to_number(const std::string& key) {
  int64_t number = -1;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), number);
  TORCH_CHECK_VALUE(error == std::errc() && end == key.data() + key.size() && number >= 0,
                    "Optimizer: the archive to load has a state '", key, "', expected a parameter's number");
  return number;
}

TorchOptimizerState::Group read_group(InputArchive& archive, int64_t number) {
  InputArchive group, options;
  TORCH_CHECK_VALUE(archive.try_read(std::to_string(number), group) && group.try_read("options", options),
                    "Optimizer: the archive to load has no group ", number);
  TorchOptimizerState::Group result;
  const c10::IValue params = read(group, "params");
  TORCH_CHECK_VALUE(params.isIntList(), "Optimizer: the parameters of group ", number,
                    " of the archive to load are no list of numbers");
  result.params = params.toIntVector();
  for (const std::string& key : options.keys()) {
    result.options[key] = to_option(key, read(options, key));
  }
  return result;
}

std::map<std::string, at::Tensor> read_slots(InputArchive& state, const std::string& number) {
  InputArchive parameter;
  TORCH_CHECK_VALUE(state.try_read(number, parameter), "Optimizer: state '", number,
                    "' of the archive to load holds no tensors");
  std::map<std::string, at::Tensor> slots;
  for (const std::string& slot : parameter.keys()) {
    at::Tensor tensor;
    TORCH_CHECK_VALUE(parameter.try_read(slot, tensor), "Optimizer: '", slot, "' of state '", number,
                      "' of the archive to load is no tensor");
    slots[slot] = tensor.detach();
  }
  return slots;
}

}  // namespace

OutputArchive& operator<<(OutputArchive& archive, const Optimizer& optimizer) {
  const TorchOptimizerState saved = optimizer.torch_state_dict();
  archive.write("kind", c10::IValue(optimizer.name()));
  archive.write("groups", c10::IValue(static_cast<int64_t>(saved.param_groups.size())));
  for (size_t g = 0; g < saved.param_groups.size(); ++g) {
    OutputArchive group(archive.compilation_unit()), options(archive.compilation_unit());
    for (const auto& [key, option] : saved.param_groups[g].options) {
      options.write(key, to_value(option));
    }
    group.write("options", options);
    group.write("params", c10::IValue(saved.param_groups[g].params));
    archive.write(std::to_string(g), group);
  }
  OutputArchive state(archive.compilation_unit());
  for (const auto& [number, slots] : saved.state) {
    OutputArchive parameter(archive.compilation_unit());
    for (const auto& [slot, tensor] : slots) {
      parameter.write(slot, tensor);
    }
    state.write(std::to_string(number), parameter);
  }
  archive.write("state", state);
  return archive;
}

InputArchive& operator>>(InputArchive& archive, Optimizer& optimizer) {
  const c10::IValue kind = read(archive, "kind"), groups = read(archive, "groups");
  TORCH_CHECK_VALUE(kind.isString() && kind.toStringRef() == optimizer.name(), "Optimizer: the archive to load is of ",
                    kind.isString() ? kind.toStringRef() : "something else", ", this optimizer is ", optimizer.name());
  TORCH_CHECK_VALUE(groups.isInt(), "Optimizer: entry 'groups' of the archive to load is no count");
  TorchOptimizerState loaded;
  std::set<int64_t> numbers;
  for (int64_t g = 0; g < groups.toInt(); ++g) {
    loaded.param_groups.push_back(read_group(archive, g));
    for (const int64_t number : loaded.param_groups.back().params) {
      TORCH_CHECK_VALUE(numbers.insert(number).second, "Optimizer: the archive to load has parameter ", number,
                        " twice");
    }
  }
  InputArchive state;
  TORCH_CHECK_VALUE(archive.try_read("state", state), "Optimizer: the archive to load has no entry 'state'");
  for (const std::string& number : state.keys()) {
    loaded.state[to_number(number)] = read_slots(state, number);
  }
  optimizer.load_torch_state_dict(loaded);
  return archive;
}

}  // namespace mezzo
