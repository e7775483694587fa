#include "other_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "command_line.h"
#include "commands.h"
#include "mezzo/text/io/nearest_name.h"

namespace mezzo::app {

using Arguments = std::vector<std::string>;

/// How other programs and earlier versions call an option.
struct OtherName {
  std::vector<std::string_view> names;                   ///< without the dashes in front
  std::vector<std::string_view> meaning = {};            ///< the arguments in its place; {} is the value
  std::string_view advice = "";                          ///< the answer, if `meaning` is empty
  std::string (*convert)(const std::string&) = nullptr;  ///< of the value
  bool is_old = false;                                   ///< of an earlier version of mezzo: used with a note
  std::vector<std::string_view> off = {};                ///< values that change nothing
  std::string_view command = "train";                    ///< without a meaning: the command that is asked for it
  bool is_ignored = false;                               ///< accepted with a note, which says `advice`; for all values
  std::vector<std::string_view> ignored = {};            ///< or for these values

  bool is_refused() const { return meaning.empty() && !is_old; }
  bool ignores(std::string_view value) const { return is_ignored || std::ranges::count(ignored, value) > 0; }
};

namespace {

/// "adamw_torch_fused" to "adamw", but not the 8-bit optimizers.
std::string optimizer_of(const std::string& value) {
  const bool is_torch = value.starts_with("adamw_torch") || value.starts_with("adamw_hf");
  return is_torch && !value.ends_with("bit") ? "adamw" : value;
}
/// "eval_loss" to "loss".
std::string without_split(const std::string& value) { return value.starts_with("eval_") ? value.substr(5) : value; }
/// Transformers takes True for the newest checkpoint.
std::string auto_for_true(const std::string& value) { return value == "True" || value == "true" ? "auto" : value; }
/// Accelerate's name for float32.
std::string fp32_for_no(const std::string& value) { return value == "no" ? "fp32" : value; }
/// When transformers evaluates and saves.
std::string interval_of_strategy(const std::string& value) {
  if (value == "best")
    throw UsageError("'best' is not a strategy of mezzo; leave it out: mezzo always keeps the best model");
  return value == "no" ? "0" : value;
}
/// Transformers takes a number below 1 for a share of all steps, and --eval-every for one of an epoch.
std::string whole_steps(const std::string& value) {
  const double steps = std::strtod(value.c_str(), nullptr);
  if (steps > 0 && steps < 1) {
    throw UsageError(fmt::format(
        "{} steps are a share of all steps in transformers; use --eval-every or --save-every, a share of an epoch",
        value));
  }
  return value;
}

/// transformers' TrainingArguments and example scripts, peft, accelerate and torchrun, and earlier versions of mezzo.
const std::vector<OtherName>& all_other_names() {
  static const std::vector<OtherName> names = {
      {.names = {"dev-fraction"},
       .meaning = {"--stratify", "--dev-ratio={}"},
       .is_old = true,
       .off = {"0", "none", ""}},
      {.names = {"init-scale"}, .meaning = {"--loss-scale=dynamic:{}"}, .is_old = true, .off = {"65536"}},
      {.names = {"allow-empty-classes"}, .advice = "is ignored; use --labels", .is_old = true, .off = {"false"}},

      {{"model-name-or-path", "model-name"}, {"--model={}"}},
      {{"train-file"}, {"--train={}"}},
      {{"validation-file", "eval-file"}, {"--dev={}"}},
      {{"test-file"}, {"--test={}"}},
      {{"text-column-name", "text-column-names"}, {"--text-column={}"}},
      {{"label-column-name"}, {"--label-column={}"}},
      {{"max-train-samples"}, {"--limit={}"}},
      {{"output-dir"}, {"--output={}"}},
      {{"overwrite-output-dir"}, {"--overwrite"}},
      {{"max-seq-length"}, {"--max-length={}"}},
      {{"pad-to-max-length"}, {"--batching=padded"}},
      {{"group-by-length"}, {"--batching=grouped"}},
      {{"ignore-mismatched-sizes"}, {"--new-head"}},

      {{"per-device-train-batch-size", "per-gpu-train-batch-size", "train-batch-size"}, {"--batch-size={}"}},
      {{"auto-find-batch-size"}, {"--batch-size=auto"}},
      {{"gradient-accumulation-steps"}, {"--grad-accumulation={}"}},
      {{"num-train-epochs", "num-epochs"}, {"--epochs={}"}},
      {{"lr"}, {"--learning-rate={}"}},
      {{"optim"}, {"--optimizer={}"}, "", optimizer_of},
      {{"lr-scheduler-type"}, {"--schedule={}"}},
      {{"num-warmup-steps"}, {"--warmup-steps={}"}},
      {{"label-smoothing-factor"}, {"--label-smoothing={}"}},
      {{"lora-r", "lora-rank"}, {"--lora={}"}},

      {{"bf16"}, {"--precision=bf16"}},
      {{"fp16"}, {"--precision=fp16"}},
      {{"mixed-precision"}, {"--precision={}"}, "", fp32_for_no},
      {{"use-cpu", "no-cuda"}, {"--device=cpu"}},

      {{"eval-steps"}, {"--eval-every={}"}, "", whole_steps},
      {{"save-steps"}, {"--save-every={}"}, "", whole_steps},
      {{"save-total-limit"}, {"--keep={}"}},
      {{"metric-for-best-model"}, {"--metric={}"}, "", without_split},
      {{"early-stopping-patience"}, {"--patience={}"}},
      {{"resume-from-checkpoint"}, {"--resume={}"}, "", auto_for_true},
      {{"disable-tqdm"}, {"--quiet"}},

      {{"nproc-per-node", "num-processes"}, {"--nproc={}"}},
      {{"num-machines"}, {"--nnodes={}"}},
      {{"machine-rank"}, {"--node-rank={}"}},
      {.names = {"master-addr", "master-port", "main-process-ip", "main-process-port", "rdzv-endpoint"},
       .advice = "use --master HOST:PORT",
       .command = "launch"},
      {.names = {"standalone"}, .advice = "leave it out: one node needs no --master", .command = "launch"},

      {.names = {"eval-strategy", "evaluation-strategy"},
       .meaning = {"--eval-every={}"},
       .advice = "--eval-every says how often",
       .convert = interval_of_strategy,
       .ignored = {"steps"}},
      {.names = {"save-strategy"},
       .meaning = {"--save-every={}"},
       .advice = "--save-every says how often",
       .convert = interval_of_strategy,
       .ignored = {"steps"}},
      {{"eval-delay"}, {}, "use --eval-every"},
      {{"load-best-model-at-end"}, {}, "leave it out: mezzo always keeps the best model"},
      {{"greater-is-better"}, {}, "leave it out: mezzo knows this of each --metric"},
      {{"per-device-eval-batch-size", "per-gpu-eval-batch-size"}, {}, "leave it out: evaluation chooses its batches"},
      {.names = {"logging-steps", "log-steps", "logging-strategy"},
       .advice = "metrics.jsonl has every step",
       .is_ignored = true},
      {.names = {"logging-dir"}, .advice = "TensorBoard files are in OUTPUT/tensorboard", .is_ignored = true},
      {.names = {"report-to"},
       .advice = "TensorBoard files are in OUTPUT/tensorboard",
       .ignored = {"none", "tensorboard"}},
      {{"do-train"}, {}, "leave it out: mezzo train always trains"},
      {{"do-eval"}, {}, "leave it out: mezzo train always evaluates on dev"},
      {{"do-predict"}, {}, "use --test, or mezzo predict"},
      {{"dataset-name", "task-name"}, {}, "use --train FILE"},
      {{"tokenizer-name"}, {}, "leave it out: the tokenizer is in the folder of --model"},
      {{"config-name"}, {}, "use --model-config FILE with --vocab FILE"},
      {{"dataloader-num-workers"}, {}, "leave it out: texts are read once"},
      {{"preprocessing-num-workers"}, {}, "use --threads"},
      {{"torch-compile"}, {}, "leave it out: mezzo's kernels are compiled"},
      {{"tf32"}, {}, "use --precision"},
      {{"fsdp", "deepspeed"}, {}, "use --zero-stage 1 with mezzo launch"},
      {{"local-rank"}, {}, "leave it out: mezzo launch sets the rank"},
      {{"push-to-hub"}, {}, "leave it out, and upload the folder of --output later"},
      {{"adafactor"}, {}, "use --optimizer adamw"},
      {{"early-stopping-threshold"}, {}, "use --patience"},
      {{"max-eval-samples"}, {}, "use a shorter --dev FILE"},
  };
  return names;
}

std::string_view name_of(std::string_view argument) { return argument.substr(0, argument.find('=')); }

/// Its value, or nothing without a '='.
std::optional<std::string> value_of(std::string_view argument) {
  const size_t equals = argument.find('=');
  return equals == std::string_view::npos ? std::nullopt : std::optional<std::string>(argument.substr(equals + 1));
}

/// Once, also if there are several ranks.
void note(const CLI::App& command, const std::string& text) {
  static std::set<std::string> noted;
  const char* rank = std::getenv("RANK");
  if (!noted.insert(text).second || (rank != nullptr && std::string_view(rank) != "0")) return;
  std::fputs(fmt::format("mezzo {}: {}\n", command.get_name(), text).c_str(), stderr);
}

/// "true" or "false" of them in any case, as Python and shells write them; else nothing.
std::optional<std::string> switch_value(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text == "true" || text == "false" ? std::optional(text) : std::nullopt;
}

/// The value of the flag at `arguments[at]`, which may be the next argument. `at` moves on then.
/// @throws UsageError  if it is missing, or is none that a switch may have
std::optional<std::string> take_value(const Flag& flag,
                                      const Arguments& arguments,
                                      size_t& at,
                                      const CLI::App& command) {
  const std::string given(name_of(arguments[at]));
  auto value = value_of(arguments[at]);
  if (!value && at + 1 < arguments.size()) {
    const std::string& next = arguments[at + 1];
    const bool is_value = flag.is_switch() ? switch_value(next).has_value() : flag.is_text() || !next.starts_with("--");
    if (is_value) value = arguments[++at];
  }
  if (!value && !flag.is_switch()) {
    throw UsageError(fmt::format("{} needs a value; see mezzo {} --help", given, command.get_name()));
  }
  if (value && flag.is_switch()) {
    const auto is_on = switch_value(*value);
    if (!is_on) throw UsageError(fmt::format("{} is '{}'; pass it alone, or true or false", given, *value));
    value = is_on;
  }
  return value;
}

/// @param flag  of the program's own name
void add_own(const Flag& flag, const std::optional<std::string>& value, Arguments& result) {
  if (flag.is_switch()) {
    result.push_back(value == "false" ? flag.name + "=false" : flag.name);
    return;
  }
  if (value->empty() && !flag.is_text()) {  // mostly a variable of a script that was never set
    throw UsageError(fmt::format("{} is empty; give it a value, or leave it out", flag.name));
  }
  if (const auto type = unmet_type(*flag.option, *value); !type.empty()) {
    const bool is_too_large = value->find_first_not_of("0123456789") == std::string::npos;
    throw UsageError(
        fmt::format("{} '{}' is not {}{}", flag.name, *value, type, is_too_large ? " that fits 64 bits" : ""));
  }
  const bool is_one_each = !flag.option->get_allow_extra_args();
  if (flag.takes_several() && !is_one_each && std::ranges::count(result, flag.name) > 0) {  // else the last would win
    throw UsageError(fmt::format("{0} is given twice; pass all files after one {0}", flag.name));
  }
  const bool is_given =
      std::ranges::any_of(result, [&](const std::string& argument) { return name_of(argument) == flag.name; });
  if (is_given && flag.is_text()) {
    throw UsageError(fmt::format("{} is given twice; pass one text, or several as lines of stdin", flag.name));
  }
  if (is_given && flag.name == "--config") throw UsageError("--config is given twice; leave one of them out");
  const auto adds_to_dynamic = [](const std::string& argument) {
    return argument.starts_with("--loss-scale=dynamic:");
  };
  if (flag.name == "--loss-scale" && value == "dynamic" && std::ranges::any_of(result, adds_to_dynamic)) return;
  // CLI11 takes the argument behind an empty `--flag=` for its value.
  const bool is_apart = flag.takes_several() || value->empty();
  result.push_back(is_apart ? flag.name : flag.name + "=" + *value);
  if (is_apart) result.push_back(*value);
}

void add_meaning(const Flag& flag, std::optional<std::string> value, const CLI::App& command, Arguments& result) {
  const OtherName& other = *flag.other;
  if (std::ranges::count(other.off, value.value_or("true")) > 0) return;
  if (value && other.convert != nullptr) value = other.convert(*value);
  Arguments meaning;
  for (const auto word : other.meaning) meaning.push_back(fmt::format(fmt::runtime(word), value.value_or("")));
  if (other.is_old) {
    const auto what = meaning.empty() ? fmt::format("{} {}", flag.name, other.advice)
                                      : fmt::format("{} is {} now", flag.name, fmt::join(meaning, " "));
    note(command, what + "; the next version will not know the old name");
  }
  const bool is_off = flag.is_switch() && value == "false";
  for (const std::string& word : meaning) {
    const auto word_value = value_of(word);
    if (is_off && word_value) {
      std::erase(result, word);
      if (name_of(word) == "--precision") result.push_back(flag.name + "=false");  // for with_precision_of_switches()
    } else {
      add_own(find_flag(word, command), is_off ? value : word_value, result);
    }
  }
}

/// Moves `at` on behind a setting that changes nothing, with a note. Leaves it for all others.
bool take_ignored(const Flag& flag, const Arguments& arguments, size_t& at, const CLI::App& command) {
  if (flag.other == nullptr || !(flag.other->is_ignored || !flag.other->ignored.empty())) return false;
  auto value = value_of(arguments[at]);
  const bool is_next = !value && at + 1 < arguments.size() && !arguments[at + 1].starts_with("--");
  if (is_next) value = arguments[at + 1];
  if (!flag.other->ignores(value.value_or(""))) return false;
  at += is_next ? 1 : 0;
  note(command, fmt::format("{}{} is ignored: {}", flag.name, value ? " " + *value : "", flag.other->advice));
  return true;
}

}  // namespace

bool Flag::is_switch() const {
  if (other == nullptr) return option->get_expected_max() == 0;
  return other->meaning.empty() || !other->meaning.back().ends_with("{}");
}

Arguments Flag::sets() const {
  if (option == nullptr) return {};
  if (other == nullptr) return {name};
  Arguments names;
  for (const auto word : other->meaning) names.emplace_back(name_of(word));
  return names;
}

Flag find_flag(std::string_view argument, const CLI::App& command) {
  Flag flag{std::string(name_of(argument))};
  std::ranges::replace(flag.name, '_', '-');
  if (flag.name.starts_with('-')) flag.option = command.get_option_no_throw(flag.name);
  if (flag.option != nullptr || !flag.name.starts_with("--")) return flag;
  const auto is_it = [&](const OtherName& other) {
    return std::ranges::count(other.names, std::string_view(flag.name).substr(2)) > 0;
  };
  const auto found = std::ranges::find_if(all_other_names(), is_it);
  if (found == all_other_names().end()) return flag;
  if (!found->meaning.empty()) {
    flag.option = command.get_option_no_throw(std::string(name_of(found->meaning.back())));
  }
  if (flag.option != nullptr || (found->meaning.empty() && command.get_name() == found->command)) flag.other = &*found;
  return flag;
}

Arguments in_own_names(const Arguments& arguments, const CLI::App& command) {
  Arguments result;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Flag flag = find_flag(arguments[i], command);
    if (!flag.is_known()) {
      result.push_back(arguments[i]);
      continue;
    }
    if (take_ignored(flag, arguments, i, command)) continue;
    if (flag.other != nullptr && flag.other->is_refused()) {
      throw UsageError(fmt::format("{} is not an option of mezzo {}; {}{}", name_of(arguments[i]), command.get_name(),
                                   flag.other->ignored.empty() ? "" : "leave it out: ", flag.other->advice));
    }
    auto value = take_value(flag, arguments, i, command);
    flag.other == nullptr ? add_own(flag, value, result) : add_meaning(flag, std::move(value), command, result);
  }
  return result;
}

void check_set_once(const Arguments& arguments, const CLI::App& command) {
  constexpr std::string_view kOptions[] = {"--precision", "--eval-every", "--save-every"};
  struct Given {
    std::string flag, meaning;
  };
  std::map<std::string, Given> given;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Flag flag = find_flag(arguments[i], command);
    const auto sets = flag.sets();
    if (!flag.is_known() || take_ignored(flag, arguments, i, command)) continue;
    if (flag.other != nullptr && flag.other->is_refused()) continue;
    const auto value = take_value(flag, arguments, i, command);
    if (sets.size() != 1 || std::ranges::find(kOptions, sets.front()) == std::end(kOptions)) continue;
    Arguments meaning;
    flag.other == nullptr ? add_own(flag, value, meaning) : add_meaning(flag, value, command, meaning);
    if (meaning.size() != 1 || name_of(meaning.front()) != sets.front()) continue;  // a switch that is off
    const auto [before, is_first] = given.try_emplace(sets.front(), Given{flag.name, meaning.front()});
    if (!is_first && before->second.flag != flag.name && before->second.meaning != meaning.front()) {
      throw UsageError(
          fmt::format("{} and {} both set {}; leave one of them out", before->second.flag, flag.name, sets.front()));
    }
    before->second = {flag.name, meaning.front()};
  }
}

Arguments with_precision_of_switches(Arguments arguments) {
  const auto num_off = std::erase(arguments, "--bf16=false") + std::erase(arguments, "--fp16=false");
  const bool is_set =
      std::ranges::any_of(arguments, [](const std::string& one) { return name_of(one) == "--precision"; });
  if (num_off > 0 && !is_set) arguments.emplace_back("--precision=fp32");
  return arguments;
}

std::string did_you_mean_option(const std::string& name, const CLI::App& command) {
  const std::string dashes = name.starts_with("--") ? "" : "--", flag = dashes + name;
  const auto first_word = [](std::string_view one) { return one.substr(0, one.find_first_of("-_", 2)); };
  Arguments others;
  for (const OtherName& other : all_other_names()) {
    for (const auto one : other.names) others.push_back(fmt::format("--{}", one));
  }
  std::erase_if(others, [&](const std::string& one) { return find_flag(one, command).sets().empty(); });
  constexpr size_t kNear = 2;
  for (auto candidates : {option_names(command), others}) {
    auto nearest = text::nearest_name(flag, candidates, kNear);
    std::erase_if(candidates, [&](const std::string& one) { return first_word(one) != first_word(flag); });
    if (!nearest) nearest = text::nearest_name(flag, candidates);
    if (nearest) {
      return fmt::format(" Did you mean '{}'?", find_flag(*nearest, command).sets().back().substr(dashes.size()));
    }
  }
  return "";
}

void rename_command(Arguments& arguments) {
  if (arguments.empty() || arguments.front() != "quantize") return;
  arguments.front() = "check-int8";
  std::fputs("mezzo: quantize is check-int8 now; the next version will not know the old name\n", stderr);
}

}  // namespace mezzo::app
