#include "text/train/run_identity.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/utsname.h>
#include <torch/version.h>

#include <string>
#include <vector>

#include "kernels/cpu/simd/instruction_set.h"
#include "kernels/describe_device.h"
#include "mezzo/optim/lr_schedule.h"
#include "mezzo/text/models/pretrained.h"
#include "mezzo/text/train/settings.h"
#include "mezzo/version.h"
#include "text/io/content_hash.h"
#include "text/machine/processor.h"

namespace mezzo::text {
namespace {

/// Of the settings that change numbers. The model, the vocabulary and the data may have other paths than before, but
/// their contents must agree.
RunIdentity::Values flags_of(const TrainConfig& config, const RunSetup& setup) {
  const bool evaluations_count = follows_metric(config.schedule);
  const bool length_counts = depends_on_total_steps(config.schedule, config.warmup_ratio > 0 && !config.warmup_steps);
  RunIdentity::Values flags;
  for (const auto& [name, value] : config.settings()) {
    flags[name] = value;
  }
  visit_settings(config, [&](const Setting& setting, const auto&) {
    const bool counts = setting.effect() == Setting::Effect::kNumbers ||
                        (setting.effect() == Setting::Effect::kNumbersOfMetricSchedules && evaluations_count) ||
                        (setting.effect() == Setting::Effect::kNumbersOfPlannedSchedules && length_counts);
    if (!counts) {
      flags.erase(std::string(setting.name()));
    }
  });
  flags["precision"] = to_string(setup.precision);
  return flags;
}

std::string summary_of(const TokenizedTexts& texts) {
  std::vector<uint64_t> hashes(texts.ids.size());
  for (const int64_t i : texts.ids.storage_order()) {
    ContentHash hash;
    hash.update(texts.ids[i].data(), texts.ids[i].size_bytes());
    if (!texts.token_types.empty()) hash.update(texts.token_types[i].data(), texts.token_types[i].size_bytes());
    hashes[i] = hash.low64();
  }
  ContentHash hash;
  hash.update(hashes.data(), hashes.size() * sizeof(hashes[0]));
  if (texts.targets.defined()) {  // there may be no texts, as without --dev
    const auto targets = texts.targets.contiguous();
    hash.update(targets.const_data_ptr(), targets.nbytes());
  }
  return fmt::format("{} texts of hash {}", texts.ids.size(), hash.hex());
}

std::string summary_of(const std::vector<std::string>& label_names) {
  ContentHash hash;
  for (const std::string& name : label_names) {
    hash.update(name.c_str(), name.size() + 1);
  }
  return fmt::format("{} of hash {}", label_names.size(), hash.hex());
}

std::vector<std::string> differences(const RunIdentity::Values& was, const RunIdentity::Values& is) {
  const auto quoted = [](const RunIdentity::Values& values, const std::string& name) {
    const auto found = values.find(name);
    return found == values.end() ? "not there" : fmt::format("'{}'", found->second);
  };
  RunIdentity::Values all = was;
  all.insert(is.begin(), is.end());
  const std::string decisive = "model_type";  // tells why all others differ
  std::vector<std::string> different;
  for (const auto& [name, value] : all) {
    const std::string before = quoted(was, name), now = quoted(is, name);
    if (before == now) continue;
    const bool is_length = name == "epochs" || name == "max-steps";
    if (is_length && (!was.contains(name) || !is.contains(name))) continue;  // the schedule is another, which is told
    std::string difference = fmt::format("{} was {}, is now {}", name, before, now);
    if (is_length) difference += ", which changes the schedule's learning rates";
    if (name == decisive) return {std::move(difference)};
    different.push_back(std::move(difference));
  }
  return different;
}

}  // namespace

RunIdentity identity_of(const TrainConfig& config, const RunSetup& setup) {
  RunIdentity::Values data = {{"training data as tokens", summary_of(setup.train)},
                              {"dev data as tokens", summary_of(setup.dev)},
                              {"labels", summary_of(setup.task->label_names())}};
  // A checkpoint of LoRA lacks the frozen weights, and models of folds belong together only if they began with equal
  // weights.
  if (config.lora > 0 || (config.folds > 0 && !config.model.empty())) {
    std::string hashes;
    for (const auto& file : weight_files(config.model)) hashes += (hashes.empty() ? "" : " ") + hash_of_file(file);
    data.emplace("weights of --model", std::move(hashes));
  }
  return {flags_of(config, setup), setup.model->config().values(), std::move(data)};
}

RunIdentity::Values final_evaluation_of(const TrainConfig& config, const RunSetup& setup) {
  return {{"calibrate", config.calibrate ? "true" : "false"}, {"test data as tokens", summary_of(setup.test)}};
}

void check_same_on_all(const RunIdentity& identity, const RunSetup& setup, const Ranks& ranks) {
  ranks.check_same(identity.flags);
  ranks.check_same(identity.model);
  RunIdentity::Values data = identity.data;
  data.emplace("test data as tokens", summary_of(setup.test));
  ranks.check_same(data);
}

std::string describe_difference(const RunIdentity& was, const RunIdentity& is) {
  for (const auto group : {&RunIdentity::flags, &RunIdentity::model, &RunIdentity::data}) {
    if (auto difference = describe_difference(was.*group, is.*group); !difference.empty()) return difference;
  }
  return "";
}

std::string describe_difference(const RunIdentity::Values& was, const RunIdentity::Values& is) {
  return fmt::format("{}", fmt::join(differences(was, is), "; "));
}

std::string describe_difference(const Checkpoint& was, const RunIdentity& is, const Task& task) {
  const std::string& metric = task.metrics().front().name;
  std::string difference = describe_difference(was.identity, is);
  if (difference.empty() && was.best && was.best->metric != metric) {
    difference = fmt::format("metric of the best model was '{}', is now '{}'", was.best->metric, metric);
  }
  return difference;
}

std::vector<std::pair<std::string, std::string>> environment_of(const RunSetup& setup) {
  utsname system{};
  uname(&system);
  const std::string name = processor().name;
  return {{"mezzo", MEZZO_VERSION},
          {"LibTorch", TORCH_VERSION},
          {"compiler", __VERSION__},
          {"system", fmt::format("{} {} {}", system.sysname, system.release, system.machine)},
          {"processor", name.empty() ? "unknown" : name},
          {"instruction set", kernels::cpu::name_of(kernels::cpu::instruction_set())},
          {"threads", std::to_string(at::get_num_threads())},
          {"device", kernels::describe_device(setup.device)},
          {"precision", std::string(to_string(setup.precision))}};
}

std::string describe_move(const RunIdentity::Values& was, const RunIdentity::Values& is) {
  std::vector<std::string> different;
  for (const char* name : {"mezzo", "LibTorch", "compiler", "processor", "instruction set", "device"}) {
    const auto before = was.find(name), now = is.find(name);
    if (before != was.end() && now != is.end() && before->second != now->second) {
      different.push_back(fmt::format("{} was '{}', is now '{}'", name, before->second, now->second));
    }
  }
  return fmt::format("{}", fmt::join(different, "; "));
}

}  // namespace mezzo::text
