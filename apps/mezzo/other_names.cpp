#include "other_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <set>
#include <string_view>

#include "commands.h"

namespace mezzo::app {
namespace {

using Arguments = std::vector<std::string>;

/// How other programs and earlier versions call an option.
struct OtherName {
  std::string_view name;                                 ///< without the dashes in front
  std::vector<std::string_view> meaning;                 ///< the arguments in its place; {} is the value
  std::string_view advice = "";                          ///< the answer, if there is no meaning
  bool is_old = false;                                   ///< of an earlier version of mezzo: used with a note
  std::string (*convert)(const std::string&) = nullptr;  ///< of the value
};

/// "adamw_torch_fused" to "adamw".
std::string first_word(const std::string& value) { return value.substr(0, value.find('_')); }
/// "eval_loss" to "loss".
std::string without_split(const std::string& value) { return value.starts_with("eval_") ? value.substr(5) : value; }
/// Transformers takes True for the newest checkpoint.
std::string auto_for_true(const std::string& value) { return value == "True" || value == "true" ? "auto" : value; }

/// transformers' TrainingArguments and example scripts, peft and accelerate, and earlier versions of mezzo.
const std::vector<OtherName>& all_other_names() {
  static const std::vector<OtherName> names = {
      {"dev-fraction", {"--stratify", "--dev-ratio={}"}, "", /*is_old=*/true},
      {"init-scale", {"--loss-scale=dynamic:{}"}, "", /*is_old=*/true},

      {"model-name-or-path", {"--model={}"}},
      {"train-file", {"--train={}"}},
      {"validation-file", {"--dev={}"}},
      {"eval-file", {"--dev={}"}},
      {"test-file", {"--test={}"}},
      {"text-column-name", {"--text-column={}"}},
      {"text-column-names", {"--text-column={}"}},
      {"label-column-name", {"--label-column={}"}},
      {"max-train-samples", {"--limit={}"}},
      {"output-dir", {"--output={}"}},
      {"overwrite-output-dir", {"--overwrite"}},
      {"max-seq-length", {"--max-length={}"}},
      {"pad-to-max-length", {"--batching=padded"}},
      {"ignore-mismatched-sizes", {"--new-head"}},

      {"per-device-train-batch-size", {"--batch-size={}"}},
      {"per-gpu-train-batch-size", {"--batch-size={}"}},
      {"train-batch-size", {"--batch-size={}"}},
      {"auto-find-batch-size", {"--batch-size=auto"}},
      {"gradient-accumulation-steps", {"--grad-accumulation={}"}},
      {"num-train-epochs", {"--epochs={}"}},
      {"num-epochs", {"--epochs={}"}},
      {"lr", {"--learning-rate={}"}},
      {"optim", {"--optimizer={}"}, "", false, first_word},
      {"lr-scheduler-type", {"--schedule={}"}},
      {"num-warmup-steps", {"--warmup-steps={}"}},
      {"label-smoothing-factor", {"--label-smoothing={}"}},
      {"lora-r", {"--lora={}"}},
      {"lora-rank", {"--lora={}"}},

      {"bf16", {"--precision=bf16"}},
      {"fp16", {"--precision=fp16"}},
      {"mixed-precision", {"--precision={}"}},
      {"use-cpu", {"--device=cpu"}},
      {"no-cuda", {"--device=cpu"}},

      {"eval-steps", {"--eval-every={}"}},
      {"save-steps", {"--save-every={}"}},
      {"save-total-limit", {"--keep={}"}},
      {"metric-for-best-model", {"--metric={}"}, "", false, without_split},
      {"early-stopping-patience", {"--patience={}"}},
      {"resume-from-checkpoint", {"--resume={}"}, "", false, auto_for_true},
      {"disable-tqdm", {"--quiet"}},

      {"eval-strategy", {}, "use --eval-every"},
      {"evaluation-strategy", {}, "use --eval-every"},
      {"save-strategy", {}, "use --save-every"},
      {"load-best-model-at-end", {}, "leave it out: mezzo always keeps the best model"},
      {"greater-is-better", {}, "leave it out: mezzo knows this of each --metric"},
      {"per-device-eval-batch-size", {}, "leave it out: evaluation chooses its batches"},
      {"per-gpu-eval-batch-size", {}, "leave it out: evaluation chooses its batches"},
      {"logging-steps", {}, "leave it out: metrics.jsonl has every step"},
      {"logging-strategy", {}, "leave it out: metrics.jsonl has every step"},
      {"logging-dir", {}, "leave it out: TensorBoard files are in OUTPUT/tensorboard"},
      {"report-to", {}, "leave it out: TensorBoard files are in OUTPUT/tensorboard"},
      {"do-train", {}, "leave it out: mezzo train always trains"},
      {"do-eval", {}, "leave it out: mezzo train always evaluates on dev"},
      {"do-predict", {}, "use --test, or mezzo predict"},
      {"dataset-name", {}, "use --train FILE"},
      {"task-name", {}, "use --train FILE"},
      {"tokenizer-name", {}, "leave it out: the tokenizer is in the folder of --model"},
      {"config-name", {}, "use --model-config FILE with --vocab FILE"},
      {"dataloader-num-workers", {}, "leave it out: texts are read once"},
      {"preprocessing-num-workers", {}, "use --threads"},
      {"torch-compile", {}, "leave it out: mezzo's kernels are compiled"},
      {"tf32", {}, "use --precision"},
      {"fsdp", {}, "use --zero-stage 1 with mezzo launch"},
      {"deepspeed", {}, "use --zero-stage 1 with mezzo launch"},
      {"group-by-length", {}, "use --batching grouped"},
      {"push-to-hub", {}, "leave it out, and upload the folder of --output later"},
      {"adafactor", {}, "use --optimizer adamw"},
      {"early-stopping-threshold", {}, "use --patience"},
      {"max-eval-samples", {}, "use a shorter --dev FILE"},
  };
  return names;
}

bool has_option(const CLI::App& command, std::string_view argument) {
  return command.get_option_no_throw(std::string(argument.substr(0, argument.find('=')))) != nullptr;
}

/// @param flag  with its dashes
const OtherName* find_other_name(const CLI::App& command, std::string_view flag) {
  if (!flag.starts_with("--")) return nullptr;
  const std::string_view name = flag.substr(2);
  const auto& names = all_other_names();
  const auto found = std::ranges::find(names, name, &OtherName::name);
  if (found == names.end()) return nullptr;
  const bool is_known = found->meaning.empty() ? command.get_name() == "train" : has_option(command, found->meaning[0]);
  return is_known ? &*found : nullptr;
}

bool takes_value(const OtherName& other) { return !other.meaning.empty() && other.meaning.back().ends_with("{}"); }

/// Once, also if there are several ranks.
void note(const CLI::App& command, const std::string& text) {
  static std::set<std::string> noted;
  const char* rank = std::getenv("RANK");
  if (!noted.insert(text).second || (rank != nullptr && std::string_view(rank) != "0")) return;
  std::fputs(fmt::format("mezzo {}: {}\n", command.get_name(), text).c_str(), stderr);
}

}  // namespace

Arguments in_own_names(const Arguments& arguments, const CLI::App& command) {
  Arguments result;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const size_t equals = argument.find('=');
    const std::string given = argument.substr(0, equals);
    std::string name = given;
    std::ranges::replace(name, '_', '-');
    const CLI::Option* own = name.starts_with("--") && name.size() > 2 ? command.get_option_no_throw(name) : nullptr;
    const OtherName* other = own == nullptr ? find_other_name(command, name) : nullptr;
    if (own == nullptr && other == nullptr) {
      result.push_back(argument);
      continue;
    }
    if (other != nullptr && other->meaning.empty()) {
      throw UsageError(fmt::format("{} is no option of mezzo {}; {}", given, command.get_name(), other->advice));
    }
    const bool is_switch = other != nullptr ? !takes_value(*other) : own->get_expected_max() == 0;
    std::optional<std::string> value;
    const bool has_next = i + 1 < arguments.size();
    const bool takes_next =
        has_next && (is_switch ? arguments[i + 1] == "True" || arguments[i + 1] == "False" : other != nullptr);
    if (equals != std::string::npos) {
      value = argument.substr(equals + 1);
    } else if (takes_next) {
      value = arguments[++i];
    }
    if (is_switch && value) {
      const bool is_on = value == "true" || value == "True";
      if (!is_on && value != "false" && value != "False") {
        throw UsageError(fmt::format("{} is '{}'; pass it alone, or true or false", given, *value));
      }
      if (!is_on) continue;
      value.reset();
    }
    const bool takes_several = own != nullptr && own->get_expected_max() > 1;
    if (takes_several && std::ranges::count(result, name) > 0) {  // else only the last place would count
      throw UsageError(fmt::format("{0} is given twice; pass all files after one {0}", name));
    }
    const bool lacks_value = !value && (!has_next || arguments[i + 1].starts_with("--"));
    if (lacks_value && (takes_several || (other != nullptr && !is_switch))) {  // CLI11 would take the next flag for it
      throw UsageError(fmt::format("{} needs a value", given));
    }
    if (other == nullptr) {
      // CLI11 takes the argument behind an empty `--flag=` for its value.
      const bool is_apart = takes_several || (value && value->empty());
      result.push_back(value && !is_apart ? name + "=" + *value : name);
      if (value && is_apart) result.push_back(*value);
      continue;
    }
    if (value && other->convert != nullptr) value = other->convert(*value);
    Arguments meaning;
    for (const std::string_view word : other->meaning) {
      meaning.push_back(fmt::format(fmt::runtime(word), value.value_or("")));
    }
    if (other->is_old) {
      note(command,
           fmt::format("{} is {} now; the next version will not know the old name", name, fmt::join(meaning, " ")));
    }
    std::ranges::move(in_own_names(meaning, command), std::back_inserter(result));
  }
  return result;
}

Arguments other_names(const CLI::App& command) {
  Arguments names;
  for (const OtherName& other : all_other_names()) {
    const std::string flag = fmt::format("--{}", other.name);
    if (find_other_name(command, flag) != nullptr) names.push_back(flag);
  }
  return names;
}

void rename_command(Arguments& arguments) {
  if (arguments.empty()) return;
  if (arguments.front() == "version") arguments.front() = "--version";
  if (arguments.front() == "help") {
    arguments.erase(arguments.begin());
    arguments.emplace_back("--help");
  }
  if (arguments.front() == "quantize") {
    arguments.front() = "check-int8";
    std::fputs("mezzo: quantize is check-int8 now; the next version will not know the old name\n", stderr);
  }
}

}  // namespace mezzo::app
