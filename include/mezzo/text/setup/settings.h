#pragma once

#include "mezzo/cpp20.h"

#include <torch/arg.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/optim/lr_schedule.h"
#include "mezzo/text/models/precision.h"
#include "mezzo/text/setup/train_config.h"

namespace mezzo::text {

/// What is known of a field of TrainConfig beside its type and default.
class Setting {
 public:
  /// @param group  of `mezzo train --help`
  /// @param name  of the flag and the TOML key: "learning-rate"
  Setting(std::string_view group, std::string_view name, std::string_view help)
      : group_(group), name_(name), help_(help) {}

  /// What a change of it does to a run that goes on.
  enum class Effect { kNumbers, kNumbersOfMetricSchedules, kNumbersOfPlannedSchedules, kNone };
  using Check = std::function<void(const std::string& value)>;

  /// What a number may be.
  TORCH_ARG(double, least) = -std::numeric_limits<double>::infinity();
  TORCH_ARG(double, most) = std::numeric_limits<double>::infinity();
  /// Whether `most` itself is too much.
  TORCH_ARG(bool, below_most) = false;
  /// Refuses a name that is none of those it may be.
  TORCH_ARG(Check, check);
  /// Those names, where they can be counted.
  TORCH_ARG(std::vector<std::string>, choices) = {};
  /// What to call a field without a value in records …
  TORCH_ARG(std::string_view, none);
  /// … and whether the command line takes that, too.
  TORCH_ARG(bool, takes_none) = false;
  TORCH_ARG(Effect, effect) = Effect::kNumbers;
  /// In run.json and the report.
  TORCH_ARG(bool, is_recorded) = true;

 public:
  /// Only these, of which the check tells.
  Setting& one_of(std::vector<std::string> names);
  Setting& between(double low, double high) { return least(low).most(high); }
  Setting& changes_no_numbers() { return effect(Effect::kNone); }

  std::string_view group() const { return group_; }
  std::string_view name() const { return name_; }
  std::string_view help() const { return help_; }

 private:
  std::string_view group_, name_, help_;
};

/// For Setting::check; they guess what was meant.
std::vector<std::string> task_names();
void check_task(const std::string& problem_type);  ///< or nothing
void check_batching(const std::string& name);
void check_class_weights(const std::string& text);  ///< or nothing
void check_freeze(const std::string& text);         ///< or nothing
void check_schedule_name(const std::string& name);

/// Calls `visit(const Setting&, field)` for every field: the one place where a setting is declared,
/// its default and meaning in C++ apart, which stand in TrainConfig. Flags, TOML keys, checks,
/// run.json and what resuming compares follow.
template <class Config, class Visit>
void visit_settings(Config& config, Visit&& visit) {
  // Products of what is counted must stay far from the largest number there is, so that none turns negative.
  constexpr double kMillion = 1e6;
  constexpr double kMostSteps = 1e9;  // a year of 30 a second
  constexpr double kHuge = 1e30;
  constexpr double kSmallestScale = 1e-30;  // its reciprocal is a float32 too

  constexpr std::string_view kData = "Data";
  visit(Setting(kData, "model", "Hugging Face folder to start from").changes_no_numbers(), config.model);
  visit(Setting(kData, "model-config", "config.json of a model with fresh weights").changes_no_numbers(),
        config.model_config);
  visit(Setting(kData, "vocab", "vocab.txt, with --model-config").changes_no_numbers(), config.vocab);
  visit(Setting(kData, "new-head", "draw the head of --model afresh, for the labels of --train"), config.new_head);
  visit(Setting(kData, "task",
                "single_label_classification, multi_label_classification, regression or token_classification; without "
                "it, that of a trained head, or else single labels")
            .choices(task_names())
            .check(check_task),
        config.task);
  visit(Setting(kData, "train",
                "training texts, in one file or several: .json, .jsonl, .csv, .tsv, .txt or .conll, also .gz or .zst, "
                "or .parquet")
            .changes_no_numbers(),
        config.train);
  visit(Setting(kData, "dev", "texts that choose the best model").changes_no_numbers(), config.dev);
  visit(Setting(kData, "test", "texts for the final report; dev without it").changes_no_numbers(), config.test);
  visit(Setting(kData, "text-column", "of the texts; in JSON, their key").changes_no_numbers(), config.text_column);
  visit(Setting(kData, "pair-column", "of the second texts of pairs; without it, text_pair if there is one")
            .changes_no_numbers(),
        config.pair_column);
  visit(Setting(kData, "label-column",
                "of the labels; a,b,c names a column of 0 and 1 for each label, which means multi_label_classification")
            .changes_no_numbers(),
        config.label_column);
  visit(Setting(kData, "labels", "all labels in their order: A,B,C; without it, the labels of --train, sorted")
            .changes_no_numbers(),
        config.labels);
  visit(Setting(kData, "unquoted", "quotes in a .csv or .tsv are characters as others are").changes_no_numbers(),
        config.unquoted);
  visit(Setting(kData, "encoding", "encoding of the data files, e.g. GB18030; auto: detected").changes_no_numbers(),
        config.encoding);
  visit(Setting(kData, "delimiter", "delimiter of tables: a character, or tab; auto: detected").changes_no_numbers(),
        config.delimiter);
  visit(Setting(kData, "columns", "names of the columns of tables without a header, e.g. text,label")
            .changes_no_numbers(),
        config.table_columns);
  visit(Setting(kData, "no-header",
                "tables without a header: text in column 1, label in column 2, or in the columns whose numbers "
                "--text-column and --label-column give")
            .changes_no_numbers(),
        config.no_header);
  visit(Setting(kData, "dev-ratio", "share of the training texts to use as dev, without --dev").between(0, 0.999),
        config.dev_ratio);
  visit(Setting(kData, "dev-fraction", "likewise, with the same share of each class; in place of --dev-ratio")
            .between(1e-6, 0.999)
            .none("none"),
        config.dev_fraction);
  visit(Setting(kData, "folds",
                "cross-validation: split the training texts into so many parts, train a model for each, of which it is "
                "dev, and say what all come to")
            .between(0, 1000),
        config.folds);
  visit(Setting(kData, "fold", "with --folds: train the model of this part alone, from 1").between(0, 1000),
        config.fold);
  visit(Setting(kData, "limit", "read only the first N training texts; 0: all").least(0), config.limit);
  visit(
      Setting(kData, "data-memory",
              "GB of texts and token ids that stay in memory; more go to a file beside --output, or in TMPDIR; auto: a "
              "quarter of the memory")
          .between(0, kMillion)
          .none("auto")
          .takes_none(true)
          .changes_no_numbers(),
      config.data_memory);
  visit(Setting(kData, "output", "folder for the results").changes_no_numbers(), config.output);
  visit(Setting(kData, "overwrite", "replace a run that the folder holds").changes_no_numbers().is_recorded(false),
        config.overwrite);

  constexpr std::string_view kRecipe = "Recipe";
  visit(Setting(kRecipe, "batch-size", "texts per micro-batch, or auto: as many as fit the memory")
            .between(1, kMillion)
            .none("auto")
            .takes_none(true),
        config.batch_size);
  visit(Setting(kRecipe, "grad-accumulation", "micro-batches per step").between(1, kMillion), config.grad_accumulation);
  visit(
      Setting(kRecipe, "max-length", "tokens a text is cut to; auto: 128, or the model's positions if these are fewer")
          .between(2, kMillion)
          .none("auto")
          .takes_none(true),
      config.max_length);
  visit(
      Setting(
          kRecipe, "window",
          "none: longer texts lose their end; mean or max: they are read in windows of --max-length, whose outputs are "
          "pooled so")
          .one_of({"none", "mean", "max"}),
      config.window);
  visit(Setting(kRecipe, "stride", "tokens that a window has of the one before").between(0, kMillion), config.stride);
  visit(Setting(kRecipe, "epochs", "passes over the training texts")
            .between(1e-6, 1e6)
            .effect(Setting::Effect::kNumbersOfPlannedSchedules),
        config.epochs);
  visit(Setting(kRecipe, "max-steps", "steps to take; wins over --epochs")
            .between(1, kMostSteps)
            .effect(Setting::Effect::kNumbersOfPlannedSchedules),
        config.max_steps);
  visit(Setting(kRecipe, "batching", "packed, grouped, dynamic or padded")
            .choices({"packed", "grouped", "dynamic", "padded"})
            .check(check_batching),
        config.batching);
  visit(Setting(kRecipe, "dropout", "replaces the model's dropout probabilities")
            .between(0, 1)
            .below_most(true)
            .none("as the model says"),
        config.dropout);
  visit(Setting(kRecipe, "freeze",
                "what keeps its weights: embeddings, so many layers with them, or encoder: all but the head")
            .check(check_freeze),
        config.freeze);
  visit(Setting(
            kRecipe, "lora",
            "rank of LoRA: train two thin factors beside each weight of the layers, and the head, and nothing else; 0: "
            "off")
            .between(0, 4096),
        config.lora);
  visit(Setting(kRecipe, "lora-alpha", "with --lora: what the factors' product is multiplied by, times the rank")
            .between(1e-6, 1e6),
        config.lora_alpha);
  visit(Setting(kRecipe, "class-weights",
                "of the loss: balanced, or weights of labels by name, as rare=5,common=1, where others weigh 1")
            .check(check_class_weights),
        config.class_weights);
  visit(Setting(kRecipe, "label-smoothing", "share of the target that goes to all labels alike; 0: off")
            .between(0, 1)
            .below_most(true),
        config.label_smoothing);
  visit(Setting(kRecipe, "focal-gamma", "exponent of the focal loss, which heeds hard texts more; 0: off")
            .between(0, 100),
        config.focal_gamma);
  visit(Setting(kRecipe, "gradient-checkpointing", "compute layers again in backward: the same numbers in less memory")
            .changes_no_numbers(),
        config.gradient_checkpointing);
  visit(Setting(kRecipe, "optimizer", "adamw, adam, sgd or lamb").one_of({"adamw", "adam", "sgd", "lamb"}),
        config.optimizer);
  visit(Setting(kRecipe, "learning-rate", "peak learning rate").between(0, kHuge), config.learning_rate);
  visit(Setting(kRecipe, "weight-decay", "of all but biases and layer norms").between(0, kHuge), config.weight_decay);
  visit(Setting(kRecipe, "max-grad-norm", "clip gradients to this total norm; 0: off").between(0, kHuge),
        config.max_grad_norm);
  visit(Setting(kRecipe, "schedule", "a schedule of transformers: constant, linear, cosine, polynomial, …")
            .choices(lr_schedule_names())
            .check(check_schedule_name),
        config.schedule);
  visit(Setting(kRecipe, "warmup-ratio", "share of the steps with a rising learning rate").between(0, 1),
        config.warmup_ratio);
  visit(
      Setting(kRecipe, "layer-lr-decay", "learning rate of a layer against the one above it; 1: off").between(1e-6, 1),
      config.layer_lr_decay);
  visit(Setting(kRecipe, "min-lr-ratio", "share of the learning rate that schedules with a minimum keep").between(0, 1),
        config.min_lr_ratio);
  visit(Setting(kRecipe, "decay-ratio", "warmup_stable_decay: share of the steps that decay").between(0, 1),
        config.decay_ratio);
  visit(Setting(kRecipe, "lr-cycles", "cosine schedules: waves, or restarts")
            .between(0, kHuge)
            .none("as the schedule has them"),
        config.lr_cycles);
  visit(Setting(kRecipe, "lr-power", "polynomial schedule: its power").between(0, kHuge), config.lr_power);
  visit(Setting(kRecipe, "lr-factor", "reduce_lr_on_plateau and greedy: what a change multiplies by")
            .between(1e-6, 1 - 1e-6)
            .none("as the schedule has it"),
        config.lr_factor);
  visit(Setting(kRecipe, "lr-patience", "reduce_lr_on_plateau and greedy: evaluations before a change")
            .between(0, kMostSteps),
        config.lr_patience);
  visit(
      Setting(kRecipe, "ema-decay",
              "decay per step of the moving average of weights that is evaluated and kept, e.g. 0.999; it warms up; 0: "
              "off")
          .between(0, 1)
          .below_most(true),
      config.ema_decay);
  visit(Setting(kRecipe, "seed", "of shuffling, dropout and fresh weights"), config.seed);

  constexpr std::string_view kPrecision = "Precision";
  visit(Setting(kPrecision, "precision", "fp32, bf16, fp16 or auto")
            .choices({"fp32", "bf16", "fp16", "auto"})
            .check([](const std::string& name) { check_precision(name); }),
        config.precision);
  visit(Setting(kPrecision, "device", "cpu, cuda, cuda:N or auto")
            .choices({"cpu", "cuda", "auto"})
            .check(check_device)
            .changes_no_numbers(),
        config.device);
  visit(Setting(kPrecision, "eager", "on GPUs: launch every kernel by itself, and record no step into a CUDA graph")
            .changes_no_numbers(),
        config.eager);
  visit(Setting(kPrecision, "master-weights", "model in half precision, float32 masters in the optimizer"),
        config.master_weights);
  visit(Setting(kPrecision, "keep-norms-fp32", "with --master-weights: layer norms stay in float32"),
        config.keep_norms_fp32);
  visit(Setting(kPrecision, "loss-scale", "fp16: dynamic, or a number that stays")
            .between(kSmallestScale, kHuge)
            .none("dynamic")
            .takes_none(true),
        config.loss_scale);
  visit(Setting(kPrecision, "init-scale", "fp16: first loss scale").between(kSmallestScale, kHuge), config.init_scale);
  visit(Setting(kPrecision, "growth-interval", "fp16: good steps before the scale grows").between(1, kMostSteps),
        config.growth_interval);
  visit(Setting(kPrecision, "growth-factor", "fp16: what it grows by").between(1 + 1e-6, kHuge), config.growth_factor);
  visit(Setting(kPrecision, "backoff-factor", "fp16: what it shrinks by after an overflow").between(1e-6, 1 - 1e-6),
        config.backoff_factor);

  constexpr std::string_view kRanks = "Several ranks";
  visit(
      Setting(kRanks, "shares",
              "parts that a batch is dealt out in, of --batch-size texts each, however many ranks work on them; 0: as "
              "many as the checkpoint says, or one a rank")
          .between(0, 1e6),
      config.shares);
  visit(
      Setting(kRanks, "balance", "what all ranks get as much of in a batch: rows or tokens").one_of({"rows", "tokens"}),
      config.balance);
  visit(
      Setting(kRanks, "gradient-compression", "of gradients sent: none, fp16 or bf16").one_of({"none", "fp16", "bf16"}),
      config.gradient_compression);
  visit(
      Setting(kRanks, "all-reduce",
              "of gradients: auto, through shared memory where all ranks are on one host; or backend, by Gloo or NCCL")
          .one_of({"auto", "backend"}),
      config.all_reduce);
  visit(
      Setting(kRanks, "zero-stage", "1: each rank keeps a share of the optimizer's state; 0: all of it").between(0, 1),
      config.zero_stage);
  visit(Setting(kRanks, "timeout", "seconds that ranks wait for each other before they give up")
            .between(1, kMostSteps / 10)
            .changes_no_numbers(),
        config.timeout);

  constexpr std::string_view kRun = "Run";
  visit(Setting(kRun, "eval-every", "steps between evaluations on dev; 0: only at the end")
            .between(0, kMostSteps)
            .effect(Setting::Effect::kNumbersOfMetricSchedules),
        config.eval_every);
  visit(Setting(kRun, "metric", "of dev, by which the best model is chosen: accuracy, macro_f1, …"), config.metric);
  visit(Setting(kRun, "patience", "end when so many evaluations have brought no better model; 0: never")
            .between(0, kMillion)
            .changes_no_numbers(),
        config.patience);
  visit(Setting(kRun, "pause-at", "share of all steps after which to evaluate, save a checkpoint and end for now")
            .between(1e-6, 1)
            .changes_no_numbers(),
        config.pause_at);
  visit(Setting(kRun, "calibrate", "fit a temperature on dev, so that scores are as sure as they are right")
            .changes_no_numbers(),
        config.calibrate);
  visit(Setting(kRun, "save-every", "steps between checkpoints, and one after the last; 0: none by steps")
            .between(0, kMostSteps)
            .changes_no_numbers(),
        config.save_every);
  visit(Setting(kRun, "save-minutes", "minutes between checkpoints; 0: none by time")
            .between(0, kMillion)
            .changes_no_numbers(),
        config.save_minutes);
  visit(Setting(kRun, "keep", "checkpoints kept").between(1, kMillion).changes_no_numbers(), config.keep);
  visit(Setting(kRun, "resume", "auto, or a checkpoint folder to go on from").changes_no_numbers(), config.resume);
  visit(Setting(kRun, "threads", "processor threads; 0: OMP_NUM_THREADS, or as many as this process may use")
            .between(0, kMostThreads)
            .changes_no_numbers(),
        config.threads);
  visit(Setting(kRun, "diagnose",
                "say where inf and NaN begin, which gradients overflow, and which loss scale suits them")
            .changes_no_numbers(),
        config.diagnose);
  visit(Setting(kRun, "dry-run",
                "show the plan, and by a few steps that are forgotten the memory and time it takes; write nothing")
            .changes_no_numbers()
            .is_recorded(false),
        config.dry_run);
  visit(Setting(kRun, "reproduces", "run.json of a run: say where this one is another, as with --config run.json")
            .changes_no_numbers()
            .is_recorded(false),
        config.reproduces);
  visit(Setting("", "restarted", "").least(0).changes_no_numbers().is_recorded(false), config.restarted);
  visit(Setting(kRun, "quiet", "print nothing but errors").changes_no_numbers().is_recorded(false), config.quiet);
}

}  // namespace mezzo::text
