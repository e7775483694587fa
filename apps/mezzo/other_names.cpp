#include "other_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
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

const OtherName* find_other_name(const CLI::App& command, std::string_view name) {
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

bool is_true(const std::string& value) { return value == "True" || value == "true"; }
bool is_false(const std::string& value) { return value == "False" || value == "false"; }

}  // namespace

Arguments in_own_names(const Arguments& arguments, const CLI::App& command) {
  Arguments result;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const size_t equals = std::min(argument.find('='), argument.size());
    std::string name = argument.substr(0, equals);
    if (!name.starts_with("--") || name.size() == 2) {
      result.push_back(argument);
      continue;
    }
    std::ranges::replace(name, '_', '-');
    const CLI::Option* own = command.get_option_no_throw(name);
    const OtherName* other = own == nullptr ? find_other_name(command, std::string_view(name).substr(2)) : nullptr;
    if (own == nullptr && other == nullptr) {
      result.push_back(argument);
      continue;
    }
    if (other != nullptr && other->meaning.empty()) {
      throw UsageError(fmt::format("{} is no option of mezzo {}; {}", argument.substr(0, equals), command.get_name(),
                                   other->advice));
    }
    std::string value = argument.substr(equals);  // with the sign in front, if there is one
    const bool is_switch = other != nullptr ? !takes_value(*other) : own->get_expected_max() == 0;
    if (value.empty() && i + 1 < arguments.size()) {
      const std::string& next = arguments[i + 1];
      const bool has_value = is_switch ? next == "True" || next == "False" : other != nullptr;
      if (has_value) value = "=" + arguments[++i];
    }
    if (is_switch && is_false(value.substr(value.empty() ? 0 : 1))) continue;
    if (is_switch && !value.empty() && is_true(value.substr(1))) value.clear();
    if (other == nullptr) {
      result.push_back(name + value);
      continue;
    }
    if (!is_switch && value.empty()) throw UsageError(argument + " needs a value");
    if (!value.empty()) value.erase(0, 1);
    if (other->convert != nullptr) value = other->convert(value);
    Arguments own_names;
    for (const std::string_view word : other->meaning) {
      own_names.push_back(fmt::format(fmt::runtime(word), value));
    }
    if (other->is_old) {
      note(command,
           fmt::format("{} is {} now; the next version will not know the old name", name, fmt::join(own_names, " ")));
    }
    std::ranges::move(own_names, std::back_inserter(result));
  }
  return result;
}

Arguments other_names(const CLI::App& command) {
  Arguments names;
  for (const OtherName& other : all_other_names()) {
    if (find_other_name(command, other.name) != nullptr) names.push_back(fmt::format("--{}", other.name));
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
