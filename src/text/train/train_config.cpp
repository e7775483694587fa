#include "mezzo/text/train/train_config.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <string_view>
#include <system_error>

#include "mezzo/optim/lr_schedule.h"
#include "mezzo/text/data/batching.h"
#include "mezzo/text/models/precision.h"
#include "text/train/run_folder.h"
#include "text/words/known_value.h"

namespace mezzo::text {
namespace {

template <class T>
std::string or_none(const std::optional<T>& value, std::string_view none) {
  return value ? fmt::format("{}", *value) : std::string(none);
}

/// NaN fails every comparison, so it never passes.
void check_range(std::string_view flag, double value, double low, double high) {
  TORCH_CHECK_VALUE(value >= low && value <= high, "--", flag, " is ", value, ", expected a number from ", low, " to ",
                    high);
}

// Products of what is counted must stay far from the largest number there is, so that none turns negative.
constexpr int64_t kMillion = 1'000'000;
constexpr int64_t kMostSteps = 1000 * kMillion;  // a year of 30 a second

void check_count(std::string_view flag, int64_t value, int64_t low, int64_t high) {
  TORCH_CHECK_VALUE(value >= low, "--", flag, " is ", value, ", expected at least ", low);
  TORCH_CHECK_VALUE(value <= high, "--", flag, " is ", value, ", expected at most ", high);
}

constexpr double kHuge = 1e30;
constexpr double kSmallestScale = 1e-30;  // its reciprocal is a float32 too

void check_sources(const TrainConfig& config) {
  TORCH_CHECK_VALUE(config.model.empty() != config.model_config.empty(),
                    "pass either --model DIR, or --model-config FILE with --vocab FILE");
  TORCH_CHECK_VALUE(config.model_config.empty() == config.vocab.empty(),
                    "--model-config and --vocab belong together: fresh weights need both");
  TORCH_CHECK_VALUE(!config.train.empty(), "pass --train FILE, the texts and labels to learn from");
  TORCH_CHECK_VALUE(!config.output.empty() || config.dry_run, "pass --output DIR, the folder for the results");
  check_range("dev-ratio", config.dev_ratio, 0, 0.999);
  TORCH_CHECK_VALUE(!config.keep_norms_fp32 || config.master_weights,
                    "--keep-norms-fp32 belongs to --master-weights; without, all weights are float32");
}

void check_schedule(const TrainConfig& config) {
  const bool by_metric = follows_metric(parse_lr_schedule(config.schedule));
  const bool evaluates = config.eval_every > 0 && (!config.dev.empty() || config.dev_ratio > 0);
  TORCH_CHECK_VALUE(!by_metric || evaluates, "--schedule ", config.schedule,
                    " follows the loss on dev: it needs --dev or --dev-ratio, and --eval-every");
  TORCH_CHECK_VALUE(!by_metric || config.warmup_ratio == 0, "--schedule ", config.schedule,
                    " has no warmup; leave --warmup-ratio out");
  check_range("warmup-ratio", config.warmup_ratio, 0, 1);
  check_range("min-lr-ratio", config.min_lr_ratio, 0, 1);
  check_range("decay-ratio", config.decay_ratio, 0, 1 - config.warmup_ratio);
  check_range("lr-cycles", config.lr_cycles.value_or(1), 0, kHuge);
  check_range("lr-power", config.lr_power, 0, kHuge);
  check_range("lr-factor", config.lr_factor.value_or(0.5), 1e-6, 1 - 1e-6);
  check_count("lr-patience", config.lr_patience, 0, kMostSteps);
}

void check_recipe(const TrainConfig& config) {
  check_precision(config.precision);
  check_device(config.device);
  TORCH_CHECK_VALUE(!config.master_weights || config.precision != "fp32",
                    "--master-weights needs --precision bf16 or fp16; this run is in fp32");
  check_known("--optimizer", config.optimizer, {"adamw", "adam", "sgd", "lamb"});
  parse_batching(config.batching);
  check_known("--schedule", config.schedule, lr_schedule_names());
  check_schedule(config);
  check_count("batch-size", config.batch_size.value_or(1), 1, kMillion);
  check_count("grad-accumulation", config.grad_accumulation, 1, kMillion);
  check_count("max-length", config.max_length, 2, kMillion);
  check_range("epochs", config.epochs, 1e-6, 1e6);
  check_count("max-steps", config.max_steps.value_or(1), 1, kMostSteps);
  TORCH_CHECK_VALUE(!config.dropout || (*config.dropout >= 0 && *config.dropout < 1), "--dropout is ",
                    or_none(config.dropout, ""), ", expected a number from 0 to below 1");
  check_range("learning-rate", config.learning_rate, 0, kHuge);
  check_range("weight-decay", config.weight_decay, 0, kHuge);
  check_range("max-grad-norm", config.max_grad_norm, 0, kHuge);
  check_range("layer-lr-decay", config.layer_lr_decay, 1e-6, 1);
  check_range("init-scale", config.init_scale, kSmallestScale, kHuge);
  check_range("growth-factor", config.growth_factor, 1 + 1e-6, kHuge);
  check_range("backoff-factor", config.backoff_factor, 1e-6, 1 - 1e-6);
  check_count("growth-interval", config.growth_interval, 1, kMostSteps);
  check_known("--balance", config.balance, {"rows", "tokens"});
  check_known("--gradient-compression", config.gradient_compression, {"none", "fp16", "bf16"});
  check_known("--all-reduce", config.all_reduce, {"auto", "backend"});
  check_range("zero-stage", static_cast<double>(config.zero_stage), 0, 1);
  check_count("timeout", config.timeout, 1, kMostSteps / 10);
  check_count("eval-every", config.eval_every, 0, kMostSteps);
  check_count("save-every", config.save_every, 0, kMostSteps);
  check_count("keep", config.keep, 1, kMillion);
  check_count("threads", config.threads, 0, kMostThreads);
  check_count("limit", config.limit, 0, std::numeric_limits<int64_t>::max());
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
  using Input = std::pair<std::string_view, std::filesystem::path>;
  for (const auto& [flag, file] :
       {Input("model", config.model / "model.safetensors"), Input("train", config.train), Input("dev", config.dev),
        Input("test", config.test), Input("vocab", config.vocab), Input("model-config", config.model_config)}) {
    for (const char* name : kRunFiles) {
      TORCH_CHECK_VALUE(!std::filesystem::equivalent(config.output / name, file, missing), "--output ",
                        config.output.string(), ": training would replace ", name, " there, which --", flag,
                        " reads; pass another folder");
    }
  }
}

}  // namespace

void TrainConfig::validate() const {
  check_sources(*this);
  check_output_apart(*this);
  check_recipe(*this);
}

std::vector<std::pair<std::string, std::string>> TrainConfig::settings() const {
  return {
      {"model", model.string()},
      {"model-config", model_config.string()},
      {"vocab", vocab.string()},
      {"train", train.string()},
      {"dev", dev.string()},
      {"test", test.string()},
      {"dev-ratio", fmt::format("{}", dev_ratio)},
      {"allow-empty-classes", allow_empty_classes ? "true" : "false"},
      {"output", output.string()},
      {"precision", precision},
      {"device", device},
      {"master-weights", master_weights ? "true" : "false"},
      {"keep-norms-fp32", keep_norms_fp32 ? "true" : "false"},
      {"batch-size", or_none(batch_size, "auto")},
      {"grad-accumulation", fmt::format("{}", grad_accumulation)},
      {"max-length", fmt::format("{}", max_length)},
      {"epochs", fmt::format("{}", epochs)},
      {"max-steps", or_none(max_steps, "")},
      {"batching", batching},
      {"dropout", or_none(dropout, "as the model says")},
      {"gradient-checkpointing", gradient_checkpointing ? "true" : "false"},
      {"optimizer", optimizer},
      {"learning-rate", fmt::format("{}", learning_rate)},
      {"weight-decay", fmt::format("{}", weight_decay)},
      {"max-grad-norm", fmt::format("{}", max_grad_norm)},
      {"layer-lr-decay", fmt::format("{}", layer_lr_decay)},
      {"schedule", schedule},
      {"warmup-ratio", fmt::format("{}", warmup_ratio)},
      {"min-lr-ratio", fmt::format("{}", min_lr_ratio)},
      {"decay-ratio", fmt::format("{}", decay_ratio)},
      {"lr-cycles", or_none(lr_cycles, "as the schedule has them")},
      {"lr-power", fmt::format("{}", lr_power)},
      {"lr-factor", or_none(lr_factor, "as the schedule has it")},
      {"lr-patience", fmt::format("{}", lr_patience)},
      {"loss-scale", or_none(loss_scale, "dynamic")},
      {"init-scale", fmt::format("{}", init_scale)},
      {"growth-interval", fmt::format("{}", growth_interval)},
      {"growth-factor", fmt::format("{}", growth_factor)},
      {"backoff-factor", fmt::format("{}", backoff_factor)},
      {"balance", balance},
      {"gradient-compression", gradient_compression},
      {"all-reduce", all_reduce},
      {"zero-stage", fmt::format("{}", zero_stage)},
      {"timeout", fmt::format("{}", timeout)},
      {"eval-every", fmt::format("{}", eval_every)},
      {"save-every", fmt::format("{}", save_every)},
      {"keep", fmt::format("{}", keep)},
      {"resume", resume},
      {"seed", fmt::format("{}", seed)},
      {"threads", fmt::format("{}", threads)},
      {"limit", fmt::format("{}", limit)},
      {"diagnose", diagnose ? "true" : "false"},
  };
}

}  // namespace mezzo::text
