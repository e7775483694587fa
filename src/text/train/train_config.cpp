#include "mezzo/text/train/train_config.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "mezzo/optim/lr_schedule.h"
#include "mezzo/text/data/batching.h"
#include "mezzo/text/hub/hub.h"
#include "mezzo/text/io/safetensors.h"
#include "mezzo/text/train/settings.h"
#include "text/io/known_value.h"
#include "text/models/problem_types.h"
#include "text/tasks/class_weights.h"
#include "text/train/run_files.h"

namespace mezzo::text {
namespace {

void check_value(const Setting& setting, const std::string& value) {
  if (setting.check()) {
    setting.check()(value);
  }
}

/// NaN fails every comparison, so it never passes.
void check_value(const Setting& setting, double value) {
  const bool fits =
      value >= setting.least() && (setting.below_most() ? value < setting.most() : value <= setting.most());
  TORCH_CHECK_VALUE(fits, "--", setting.name(), " is ", fmt::format("{}", value), ", expected a number from ",
                    setting.least(), setting.below_most() ? " to below " : " to ", setting.most());
}

void check_value(const Setting& setting, int64_t value) {
  const auto number = static_cast<double>(value);
  TORCH_CHECK_VALUE(number >= setting.least(), "--", setting.name(), " is ", value, ", expected at least ",
                    static_cast<int64_t>(setting.least()));
  TORCH_CHECK_VALUE(number <= setting.most(), "--", setting.name(), " is ", value, ", expected at most ",
                    static_cast<int64_t>(setting.most()));
}

void check_value(const Setting&, bool) {}
void check_value(const Setting&, uint64_t) {}
void check_value(const Setting&, const StepInterval&) {}
void check_value(const Setting&, const std::filesystem::path&) {}
void check_value(const Setting&, const std::vector<std::filesystem::path>&) {}

template <class T>
void check_value(const Setting& setting, const std::optional<T>& value) {
  if (value) {
    check_value(setting, *value);
  }
}

template <class T>
std::string to_text(const Setting&, const T& value) {
  return fmt::format("{}", value);
}
std::string to_text(const Setting&, const std::filesystem::path& value) { return hub_name(value); }
std::string to_text(const Setting&, const StepInterval& value) { return value.text(); }
std::string to_text(const Setting&, const std::vector<std::filesystem::path>& values) {
  std::vector<std::string> names;
  std::ranges::transform(values, std::back_inserter(names), [](const auto& path) { return path.string(); });
  return fmt::format("{}", fmt::join(names, " "));
}
template <class T>
std::string to_text(const Setting& setting, const std::optional<T>& value) {
  return value ? to_text(setting, *value) : std::string(setting.none());
}

void check_sources(const TrainConfig& config) {
  TORCH_CHECK_VALUE(config.model.empty() != config.model_config.empty(),
                    "pass either --model MODEL, or --model-config FILE with --vocab FILE");
  TORCH_CHECK_VALUE(config.model_config.empty() == config.vocab.empty(),
                    "--model-config and --vocab belong together: fresh weights need both");
  TORCH_CHECK_VALUE(!config.new_head || !config.model.empty(),
                    "--new-head belongs to --model: the head of a fresh model is new anyway");
  TORCH_CHECK_VALUE(!config.train.empty(), "pass --train FILE, the texts and labels to learn from");
  TORCH_CHECK_VALUE(!config.output.empty() || config.dry_run, "pass --output DIR, the folder for the results");
  TORCH_CHECK_VALUE(!config.keep_norms_fp32 || config.master_weights,
                    "--keep-norms-fp32 belongs to --master-weights; without, all weights are float32");
}

void check_folds(const TrainConfig& config) {
  TORCH_CHECK_VALUE(config.folds != 1, "--folds is 1, expected at least 2: one of them is dev, and the others train");
  TORCH_CHECK_VALUE(config.folds > 0 || config.fold == 0, "--fold chooses one fold of --folds; pass --folds as well");
  TORCH_CHECK_VALUE(config.fold <= config.folds, "--fold is ", config.fold, ", of --folds ", config.folds);
  TORCH_CHECK_VALUE(config.folds == 0 || (config.dev.empty() && !config.stratify),
                    "--folds takes dev from the training texts; leave --dev and --stratify out");
  const bool is_of_one = config.resume.empty() || config.resume == "auto";
  TORCH_CHECK_VALUE(config.folds == 0 || config.fold > 0 || is_of_one,
                    "--resume names a checkpoint of one fold; pass --resume auto, or --fold as well");
  TORCH_CHECK_VALUE(config.folds == 0 || config.fold > 0 || !config.dry_run,
                    "--dry-run plans one run; pass --fold 1 as well");
  TORCH_CHECK_VALUE(config.folds == 0 || config.fold > 0 || config.pause_at == 1,
                    "--pause-at is for one run; pass --fold");
}

void check_schedule(const TrainConfig& config) {
  const bool by_metric = follows_metric(config.schedule);
  const bool has_dev = config.has_dev();
  const bool evaluates = has_dev && !(config.eval_every && config.eval_every->is_never());
  TORCH_CHECK_VALUE(!config.stratify || (config.dev.empty() && config.dev_ratio > 0),
                    "--stratify splits the training texts, and there is ",
                    config.dev.empty() ? "no part for dev; raise --dev-ratio" : "--dev; leave one of them out");
  TORCH_CHECK_VALUE(config.metric.empty() || has_dev,
                    "--metric chooses the best model on dev: it needs --dev or --dev-ratio");
  TORCH_CHECK_VALUE(!config.calibrate || has_dev, "--calibrate fits on dev: it needs --dev or --dev-ratio");
  TORCH_CHECK_VALUE(config.patience == 0 || evaluates,
                    "--patience counts evaluations on dev: it needs --dev or --dev-ratio, and --eval-every");
  TORCH_CHECK_VALUE(!by_metric || evaluates, "--schedule ", config.schedule,
                    " follows the loss on dev: it needs --dev or --dev-ratio, and --eval-every");
  const double warmup = config.warmup_ratio.value_or(default_warmup_ratio(config.schedule));
  TORCH_CHECK_VALUE(!by_metric || (warmup == 0 && config.warmup_steps.value_or(0) == 0), "--schedule ", config.schedule,
                    " has no warmup; leave --warmup-ratio and --warmup-steps out");
  constexpr double kRounding = 1e-9;
  TORCH_CHECK_VALUE(
      config.schedule != "warmup_stable_decay" || config.warmup_steps || warmup + config.decay_ratio <= 1 + kRounding,
      "--warmup-ratio is ", warmup, " and --decay-ratio ", config.decay_ratio,
      ": their sum is above 1; make it at most 1");
}

/// By device and inode, so that links do not hide it.
void check_output_apart(const TrainConfig& config) {
  if (config.output.empty()) {
    return;
  }
  std::error_code missing;
  TORCH_CHECK_VALUE(!std::filesystem::equivalent(config.output, config.model, missing), "--output ",
                    config.output.string(),
                    " is the folder of --model: training would replace the weights "
                    "it starts from; pass another folder");
  std::vector<std::pair<std::string_view, std::filesystem::path>> inputs{
      {"model", config.model / kWeightsFile}, {"vocab", config.vocab}, {"model-config", config.model_config}};
  for (const auto& path : config.train) inputs.emplace_back("train", path);
  for (const auto& path : config.dev) inputs.emplace_back("dev", path);
  for (const auto& path : config.test) inputs.emplace_back("test", path);
  for (const auto& [flag, file] : inputs) {
    for (const char* name : kRunFiles) {
      TORCH_CHECK_VALUE(!std::filesystem::equivalent(config.output / name, file, missing), "--output ",
                        config.output.string(), ": training would replace ", name, " there, which --", flag,
                        " reads; pass another folder");
    }
  }
}

}  // namespace

Setting& Setting::one_of(std::vector<std::string> names) {
  const std::string flag = "--" + std::string(name_);
  return choices(names).check([flag, names](const std::string& value) { check_known(flag, value, names); });
}

std::vector<std::string> task_names() {
  const auto known = problem_type_names();
  return {known.begin(), known.end()};
}

void check_task(const std::string& problem_type) {
  if (!problem_type.empty()) check_known("--task", problem_type, task_names());
}

void check_class_weights(const std::string& text) {
  if (!text.empty() && text != kBalanced) parse_class_weights(text);
}

void check_freeze(const std::string& text) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const bool is_number = !text.empty() && text.size() < 10 && std::ranges::all_of(text, is_digit);
  TORCH_CHECK_VALUE(text.empty() || text == "embeddings" || text == "encoder" || is_number, "--freeze is '", text,
                    "', expected embeddings, encoder, or a number of layers");
}

namespace {

/// Nothing if `text` is not a loss scale.
std::optional<std::pair<bool, double>> parse_loss_scale(std::string_view text) {
  constexpr std::string_view kDynamic = "dynamic";
  constexpr double kDefault = 65536, kSmallest = 1e-30, kLargest = 1e30;  // their reciprocals are float32 too
  const bool is_fixed = !text.starts_with(kDynamic);
  if (text == kDynamic) return std::pair(is_fixed, kDefault);
  const std::string_view number = is_fixed ? text : text.substr(kDynamic.size());
  const size_t begin = is_fixed ? 0 : 1;
  if (number.empty() || (!is_fixed && number.front() != ':')) return std::nullopt;
  double scale = 0;
  const auto [end, error] = std::from_chars(number.data() + begin, number.data() + number.size(), scale);
  const bool is_number = error == std::errc() && end == number.data() + number.size();
  if (!is_number || !(scale >= kSmallest && scale <= kLargest)) return std::nullopt;
  return std::pair(is_fixed, scale);
}

}  // namespace

void check_loss_scale(const std::string& text) {
  TORCH_CHECK_VALUE(parse_loss_scale(text), "--loss-scale is '", text,
                    "', expected dynamic, dynamic:FIRST or a number, from 1e-30 to 1e30");
}

std::pair<bool, double> TrainConfig::parsed_loss_scale() const { return parse_loss_scale(loss_scale).value(); }

void check_batching(const std::string& name) { parse_batching(name); }

void check_schedule_name(const std::string& name) { check_known("--schedule", name, lr_schedule_names()); }

void TrainConfig::validate() const {
  check_sources(*this);
  check_output_apart(*this);
  visit_settings(*this, [](const Setting& setting, const auto& field) { check_value(setting, field); });
  TORCH_CHECK_VALUE(!master_weights || precision != "fp32",
                    "--master-weights needs --precision bf16 or fp16; this run is in fp32");
  TORCH_CHECK_VALUE(label_smoothing == 0 || focal_gamma == 0,
                    "--label-smoothing and --focal-gamma are two losses; pass one of them");
  TORCH_CHECK_VALUE(stride == 0 || window != "none", "--stride is for windows; pass --window mean or max as well");
  TORCH_CHECK_VALUE(ema_decay == 0 || zero_stage == 0 || !master_weights,
                    "--ema-decay averages all weights on every rank, but with --zero-stage 1 and --master-weights each "
                    "rank has a share of them; leave one of the three out");
  TORCH_CHECK_VALUE(lora == 0 || !model.empty(), "--lora adapts a trained model; pass it as --model");
  TORCH_CHECK_VALUE(lora == 0 || freeze.empty(),
                    "--lora freezes the encoder and trains its added factors; leave --freeze out");
  TORCH_CHECK_VALUE(lora == 0 || !master_weights, "--lora trains few weights, in float32; leave --master-weights out");
  TORCH_CHECK_VALUE(lora > 0 || (lora_dropout == 0 && lora_target_modules.empty()), "--lora-",
                    lora_dropout > 0 ? "dropout" : "target-modules", " belongs to --lora; pass --lora RANK");
  check_folds(*this);
  check_schedule(*this);
  columns.validate(/*has_labels=*/true);
  split_names(labels, "--labels");
}

std::vector<std::string> recipe_names() { return {"default", "reference"}; }

void apply_recipe(TrainConfig& config, const std::string& name) {
  check_known("--recipe", name, recipe_names());
  if (name != "reference") return;
  config.epochs = 1;
  config.max_length = 128;
  config.learning_rate = 3e-5;
  config.schedule = "constant";
  config.warmup_ratio = 0;
  config.max_grad_norm = 0;
  config.eval_every = StepInterval::steps(50);
}

double default_warmup_ratio(std::string_view schedule) {
  return schedule == "constant" || follows_metric(schedule) ? 0 : 0.1;
}

bool TrainConfig::has_dev() const { return !dev.empty() || folds > 0 || dev_ratio > 0; }

LossOptions TrainConfig::loss() const {
  return {.class_weights = class_weights, .label_smoothing = label_smoothing, .focal_gamma = focal_gamma};
}

std::vector<std::pair<std::string, std::string>> TrainConfig::settings() const {
  std::vector<std::pair<std::string, std::string>> settings;
  visit_settings(*this, [&](const Setting& setting, const auto& field) {
    if (setting.is_recorded()) {
      settings.emplace_back(setting.name(), to_text(setting, field));
    }
  });
  return settings;
}

}  // namespace mezzo::text
