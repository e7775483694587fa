#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>

#include "commands.h"
#include "mezzo/text/train/train_config.h"
#include "mezzo/text/train/trainer.h"
#include "ranks.h"
#include "stop_signal.h"

namespace mezzo::app {
namespace {

using text::TrainConfig;

struct TrainFlags {
  TrainConfig config;
  std::string config_file;
  std::string loss_scale = "dynamic";
  std::string batch_size = "32";
  bool restarted = false;  // by mezzo launch
};

void add_sources(CLI::App& app, TrainConfig& config) {
  app.add_option("--model", config.model, "Hugging Face folder to start from")->group("Data");
  app.add_option("--model-config", config.model_config, "config.json of a model with fresh weights")->group("Data");
  app.add_option("--vocab", config.vocab, "vocab.txt, with --model-config")->group("Data");
  app.add_option("--train", config.train, "training texts: .json, .jsonl, .csv or .tsv")->group("Data");
  app.add_option("--dev", config.dev, "texts that choose the best model")->group("Data");
  app.add_option("--test", config.test, "texts for the final report; dev without it")->group("Data");
  app.add_option("--dev-ratio", config.dev_ratio, "share of the training texts to use as dev, without --dev")
      ->group("Data")
      ->capture_default_str();
  app.add_flag("--allow-empty-classes", config.allow_empty_classes, "train classes that no training text is of")
      ->group("Data");
  app.add_option("--limit", config.limit, "read only the first N training texts; 0: all")
      ->group("Data")
      ->capture_default_str();
  app.add_option("--output", config.output, "folder for the results")->group("Data");
  app.add_flag("--overwrite", config.overwrite, "replace a run that the folder holds")->group("Data");
}

void add_precision(CLI::App& app, TrainFlags& flags) {
  TrainConfig& config = flags.config;
  app.add_option("--precision", config.precision, "fp32, bf16, fp16 or auto")
      ->group("Precision")
      ->capture_default_str();
  app.add_option("--device", config.device, "cpu, cuda, cuda:N or auto")->group("Precision")->capture_default_str();
  app.add_flag("--master-weights", config.master_weights, "model in half precision, float32 masters in the optimizer")
      ->group("Precision");
  app.add_flag("--keep-norms-fp32", config.keep_norms_fp32, "with --master-weights: layer norms stay in float32")
      ->group("Precision");
  app.add_option("--loss-scale", flags.loss_scale, "fp16: dynamic, or a number that stays")
      ->group("Precision")
      ->capture_default_str();
  app.add_option("--init-scale", config.init_scale, "fp16: first loss scale")
      ->group("Precision")
      ->capture_default_str();
  app.add_option("--growth-interval", config.growth_interval, "fp16: good steps before the scale grows")
      ->group("Precision")
      ->capture_default_str();
  app.add_option("--growth-factor", config.growth_factor, "fp16: what it grows by")
      ->group("Precision")
      ->capture_default_str();
  app.add_option("--backoff-factor", config.backoff_factor, "fp16: what it shrinks by after an overflow")
      ->group("Precision")
      ->capture_default_str();
}

void add_schedule_details(CLI::App& app, TrainConfig& config) {
  app.add_option("--layer-lr-decay", config.layer_lr_decay, "learning rate of a layer against the one above it; 1: off")
      ->group("Recipe")
      ->capture_default_str();
  app.add_option("--min-lr-ratio", config.min_lr_ratio, "share of the learning rate that schedules with a minimum keep")
      ->group("Recipe")
      ->capture_default_str();
  app.add_option("--decay-ratio", config.decay_ratio, "warmup_stable_decay: share of the steps that decay")
      ->group("Recipe")
      ->capture_default_str();
  app.add_option("--lr-cycles", config.lr_cycles, "cosine schedules: waves, or restarts")->group("Recipe");
  app.add_option("--lr-power", config.lr_power, "polynomial schedule: its power")
      ->group("Recipe")
      ->capture_default_str();
  app.add_option("--lr-factor", config.lr_factor, "reduce_lr_on_plateau and greedy: what a change multiplies by")
      ->group("Recipe");
  app.add_option("--lr-patience", config.lr_patience, "reduce_lr_on_plateau and greedy: evaluations before a change")
      ->group("Recipe")
      ->capture_default_str();
}

void add_recipe(CLI::App& app, TrainFlags& flags) {
  TrainConfig& config = flags.config;
  app.add_option("--batch-size", flags.batch_size, "texts per micro-batch, or auto: as many as fit the memory")
      ->group("Recipe")
      ->capture_default_str();
  app.add_option("--grad-accumulation", config.grad_accumulation, "micro-batches per step")
      ->group("Recipe")
      ->capture_default_str();
  app.add_option("--max-length", config.max_length, "tokens a text is cut to")->group("Recipe")->capture_default_str();
  app.add_option("--epochs", config.epochs, "passes over the training texts")->group("Recipe")->capture_default_str();
  app.add_option("--max-steps", config.max_steps, "steps to take; wins over --epochs")->group("Recipe");
  app.add_option("--batching", config.batching, "packed, grouped, dynamic or padded")
      ->group("Recipe")
      ->capture_default_str();
  app.add_option("--dropout", config.dropout, "replaces the model's dropout probabilities")->group("Recipe");
  app.add_flag("--gradient-checkpointing", config.gradient_checkpointing,
               "compute layers again in backward: the same numbers in less memory")
      ->group("Recipe");
  app.add_option("--optimizer", config.optimizer, "adamw, adam, sgd or lamb")->group("Recipe")->capture_default_str();
  app.add_option("--learning-rate", config.learning_rate, "peak learning rate")->group("Recipe")->capture_default_str();
  app.add_option("--weight-decay", config.weight_decay, "of all but biases and layer norms")
      ->group("Recipe")
      ->capture_default_str();
  app.add_option("--max-grad-norm", config.max_grad_norm, "clip gradients to this total norm; 0: off")
      ->group("Recipe")
      ->capture_default_str();
  app.add_option("--schedule", config.schedule, "a schedule of transformers: constant, linear, cosine, polynomial, …")
      ->group("Recipe")
      ->capture_default_str();
  app.add_option("--warmup-ratio", config.warmup_ratio, "share of the steps with a rising learning rate")
      ->group("Recipe")
      ->capture_default_str();
  add_schedule_details(app, config);
  app.add_option("--seed", config.seed, "of shuffling, dropout and fresh weights")
      ->group("Recipe")
      ->capture_default_str();
}

void add_ranks(CLI::App& app, TrainConfig& config) {
  app.add_option("--balance", config.balance, "what all ranks get as much of in a batch: rows or tokens")
      ->group("Several ranks")
      ->capture_default_str();
  app.add_option("--gradient-compression", config.gradient_compression, "of gradients sent: none, fp16 or bf16")
      ->group("Several ranks")
      ->capture_default_str();
  app.add_option(
         "--all-reduce", config.all_reduce,
         "of gradients: auto, through shared memory where all ranks are on one host; or backend, by Gloo or NCCL")
      ->group("Several ranks")
      ->capture_default_str();
  app.add_option("--zero-stage", config.zero_stage, "1: each rank keeps a share of the optimizer's state; 0: all of it")
      ->group("Several ranks")
      ->capture_default_str();
  app.add_option("--timeout", config.timeout, "seconds that ranks wait for each other before they give up")
      ->group("Several ranks")
      ->capture_default_str();
}

void add_running(CLI::App& app, TrainFlags& flags) {
  TrainConfig& config = flags.config;
  app.add_option("--config", flags.config_file, "TOML file with any of these settings; flags win")->group("Run");
  app.add_option("--eval-every", config.eval_every, "steps between evaluations on dev; 0: only at the end")
      ->group("Run")
      ->capture_default_str();
  app.add_option("--save-every", config.save_every, "steps between checkpoints; 0: only when stopped")
      ->group("Run")
      ->capture_default_str();
  app.add_option("--keep", config.keep, "checkpoints kept")->group("Run")->capture_default_str();
  app.add_option("--resume", config.resume, "auto, or a checkpoint folder to go on from")->group("Run");
  app.add_flag("--restarted", flags.restarted)->group("");  // of mezzo launch
  app.add_option("--threads", config.threads, "processor threads; 0: LibTorch's choice")
      ->group("Run")
      ->capture_default_str();
  app.add_flag("--diagnose", config.diagnose,
               "say where inf and NaN begin, which gradients overflow, and which loss scale suits them")
      ->group("Run");
  app.add_flag("--dry-run", config.dry_run,
               "show the plan, and by a few steps that are forgotten the memory and time it takes; write nothing")
      ->group("Run");
  app.add_flag("--quiet", config.quiet, "print nothing but errors")->group("Run");
}

/// All of `text` as a number.
template <class Number>
std::optional<Number> parse_number(const std::string& text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

std::optional<double> parse_loss_scale(const std::string& text) {
  if (text == "dynamic") {
    return std::nullopt;
  }
  const auto scale = parse_number<double>(text);
  if (!scale || !(*scale >= 1e-30 && *scale <= 1e30)) {
    throw UsageError(fmt::format("--loss-scale '{}' is neither 'dynamic' nor a number from 1e-30 to 1e+30", text));
  }
  return scale;
}

std::optional<int64_t> parse_batch_size(const std::string& text) {
  if (text == "auto") {
    return std::nullopt;
  }
  const auto size = parse_number<int64_t>(text);
  if (!size) {
    throw UsageError(fmt::format("--batch-size '{}' is neither 'auto' nor a whole number", text));
  }
  return size;
}

/// Whether the run that a launcher starts again had gone on from its --resume, and has a checkpoint: then there is more
/// to go on from. All ranks read the same. Where a run before it was told the same, that may be one of its own.
bool has_own_checkpoints(const TrainConfig& config) {
  std::ifstream file(config.output / "run.json");
  const auto json = nlohmann::json::parse(file, /*cb=*/nullptr, /*allow_exceptions=*/false);
  const nlohmann::json::json_pointer setting("/settings/resume");
  if (!json.contains(setting) || (json[setting] != config.resume && json[setting] != "auto")) {
    return false;
  }
  std::error_code none;
  const std::filesystem::directory_iterator entries(config.output / "checkpoints", none);
  return std::any_of(begin(entries), end(entries),
                     [](const auto& entry) { return entry.path().filename().string().starts_with("step-"); });
}

int run_train(TrainFlags& flags) {
  flags.config.loss_scale = parse_loss_scale(flags.loss_scale);
  flags.config.batch_size = parse_batch_size(flags.batch_size);
  if (flags.restarted && has_own_checkpoints(flags.config)) {
    flags.config.resume = "auto";
  }
  as_usage([&] { flags.config.validate(); });
  catch_stop_signals();
  std::signal(SIGPIPE, SIG_IGN);  // whoever reads what the run says may go away
  const auto timeout = std::chrono::seconds(flags.config.timeout);
  return with_ranks(flags.config.device, timeout, [&](distributed::ProcessGroup* group) {
    const auto result = text::train(flags.config, [] { return stop_signal() != 0; }, group);
    if (result.saves_failed) {
      return kNotAllSaved;
    }
    // The signal may have come to another rank.
    return result.finished ? 0 : 128 + (stop_signal() != 0 ? stop_signal() : SIGTERM);
  });
}

}  // namespace

Run add_train(CLI::App& app) {
  auto flags = std::make_shared<TrainFlags>();
  add_sources(app, flags->config);
  add_recipe(app, *flags);
  add_precision(app, *flags);
  add_ranks(app, flags->config);
  add_running(app, *flags);
  app.footer(
      "Exit status: 0 trained; 1 failed; 2 the command line is wrong; 3 trained, but a checkpoint in between could\n"
      "not be saved; 129, 130 or 143 stopped by SIGHUP, Ctrl-C or SIGTERM, with a checkpoint saved once a step was "
      "taken.");
  return [flags] { return run_train(*flags); };
}

}  // namespace mezzo::app
