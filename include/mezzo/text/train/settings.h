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
#include "mezzo/text/train/train_config.h"

namespace mezzo::text {

/// The properties of a field of TrainConfig, in addition to its type and default.
class Setting {
 public:
  /// @param group  heading in `mezzo train --help`
  /// @param name  of the flag and the TOML key: "learning-rate"
  /// @param help  one line for `--help`
  Setting(std::string_view group, std::string_view name, std::string_view help)
      : group_(group), name_(name), help_(help) {}

  /// The effect of a change on a resumed run.
  enum class Effect { kNumbers, kNumbersOfMetricSchedules, kNumbersOfPlannedSchedules, kNone };
  /// Throws c10::ValueError for an invalid value.
  using Check = std::function<void(const std::string& value)>;

  /// The smallest allowed number.
  TORCH_ARG(double, least) = -std::numeric_limits<double>::infinity();
  /// The largest allowed number.
  TORCH_ARG(double, most) = std::numeric_limits<double>::infinity();
  /// Whether `most` is excluded.
  TORCH_ARG(bool, below_most) = false;
  /// Checks a name.
  TORCH_ARG(Check, check);
  /// The names that the check accepts, if they are finite. Help lists them after the help text.
  TORCH_ARG(std::vector<std::string>, choices) = {};
  /// The word for the value in help: DIR, N, NAME. Empty: FILE for paths, else by the type of the
  /// field.
  TORCH_ARG(std::string_view, metavar);
  /// Whether `mezzo train --help` shows it; `--help-all` shows all settings.
  TORCH_ARG(bool, is_basic) = false;
  /// Help marks it as required; TrainConfig::validate() checks that.
  TORCH_ARG(bool, is_required) = false;
  /// The word for a missing value in records …
  TORCH_ARG(std::string_view, none);
  /// … and whether the command line accepts this word.
  TORCH_ARG(bool, takes_none) = false;
  /// The effect of a change on a resumed run.
  TORCH_ARG(Effect, effect) = Effect::kNumbers;
  /// Whether run.json and the report contain it.
  TORCH_ARG(bool, is_recorded) = true;

 public:
  /// Accepts only these names.
  Setting& one_of(std::vector<std::string> names);
  /// Accepts numbers from `low` to `high`.
  Setting& between(double low, double high) { return least(low).most(high); }
  /// A resumed run may change it.
  Setting& changes_no_numbers() { return effect(Effect::kNone); }
  /// `mezzo train --help` shows it.
  Setting& basic() { return is_basic(true); }
  /// The command line must set it.
  Setting& required() { return basic().is_required(true); }

  /// Heading in `mezzo train --help`.
  std::string_view group() const { return group_; }
  /// Name of the flag and the TOML key.
  std::string_view name() const { return name_; }
  /// Line for `--help`.
  std::string_view help() const { return help_; }

 private:
  std::string_view group_, name_, help_;
};

/// The names that check_task() accepts. The checks below are for Setting::check; their errors name
/// the most similar valid name.
std::vector<std::string> task_names();
void check_task(const std::string& problem_type);   ///< empty is allowed
void check_batching(const std::string& name);       ///< a name of Batching
void check_class_weights(const std::string& text);  ///< empty is allowed
void check_freeze(const std::string& text);         ///< empty is allowed
void check_loss_scale(const std::string& text);     ///< see TrainConfig::loss_scale
void check_schedule_name(const std::string& name);  ///< see lr_schedule_names()

/// The part of visit_settings() for the columns of data files, for commands other than `mezzo
/// train`.
template <class Columns, class Visit>
void visit_columns(Columns& columns, Visit&& visit) {
  constexpr std::string_view kData = "Data";
  visit(
      Setting(kData, "text-column", "column of the texts; a key in JSON").metavar("NAME").basic().changes_no_numbers(),
      columns.text);
  visit(Setting(kData, "pair-column", "column of the second texts of pairs; text_pair if a file has it")
            .metavar("NAME")
            .changes_no_numbers(),
        columns.text_pair);
  visit(Setting(kData, "label-column",
                "column of the labels; A,B,C: a column of 0 and 1 for each label of multi_label_classification")
            .metavar("NAME")
            .basic()
            .changes_no_numbers(),
        columns.label);
  visit(Setting(kData, "unquoted", "quotes in .csv and .tsv are plain characters").changes_no_numbers(),
        columns.unquoted);
  visit(Setting(kData, "encoding", "encoding of the data files, e.g. GB18030; auto: detected")
            .metavar("NAME")
            .basic()
            .changes_no_numbers(),
        columns.encoding);
  visit(Setting(kData, "delimiter", "delimiter of tables: a character, or tab; auto: detected")
            .metavar("C")
            .basic()
            .changes_no_numbers(),
        columns.delimiter);
  visit(Setting(kData, "columns", "columns of tables without a header, e.g. text,label")
            .metavar("NAMES")
            .changes_no_numbers(),
        columns.columns);
  visit(Setting(kData, "no-header", "tables have no header; their columns have numbers from 1").changes_no_numbers(),
        columns.no_header);
}

/// Calls `visit(const Setting&, field)` for every field. Each setting is declared only here, except
/// its C++ default and meaning, which are in TrainConfig. Flags, TOML keys, checks, run.json and
/// the comparison of a resumed run follow from it.
template <class Config, class Visit>
void visit_settings(Config& config, Visit&& visit) {
  // Products of what is counted must stay far from the largest number there is, so that none turns negative.
  constexpr double kMillion = 1e6;
  constexpr double kMostSteps = 1e9;  // a year of 30 a second
  constexpr double kHuge = 1e30;

  constexpr std::string_view kData = "Data";
  visit(Setting(kData, "model", "folder of a model, or its name on the Hugging Face Hub: NAME, ORG/NAME, NAME@REVISION")
            .metavar("MODEL")
            .required()
            .changes_no_numbers(),
        config.model);
  visit(Setting(kData, "model-config", "config.json of a model with fresh weights, in place of --model")
            .changes_no_numbers(),
        config.model_config);
  visit(Setting(kData, "vocab", "vocab.txt, with --model-config").changes_no_numbers(), config.vocab);
  visit(Setting(kData, "new-head", "draw the head of --model afresh, for the labels of --train"), config.new_head);
  visit(Setting(kData, "task", "kind of labels; without it, that of a trained head, or one label a text")
            .metavar("TASK")
            .choices(task_names())
            .check(check_task),
        config.task);
  visit(
      Setting(kData, "train", "labelled texts: .csv, .tsv, .json, .jsonl, .txt, .conll, also .gz or .zst, or .parquet")
          .required()
          .changes_no_numbers(),
      config.train);
  visit(Setting(kData, "dev", "labelled texts that choose the best model; without it, a part of --train")
            .basic()
            .changes_no_numbers(),
        config.dev);
  visit(Setting(kData, "test", "labelled texts for the final report").basic().changes_no_numbers(), config.test);
  visit_columns(config.columns, visit);
  visit(Setting(kData, "labels", "all labels in their order: A,B,C; by default the labels of --train, sorted")
            .metavar("NAMES")
            .changes_no_numbers(),
        config.labels);
  visit(Setting(kData, "dev-ratio", "share of --train to use as dev; 0: none").basic().between(0, 0.999),
        config.dev_ratio);
  visit(Setting(kData, "stratify", "give the dev texts of --dev-ratio the class shares of --train"), config.stratify);
  visit(Setting(kData, "folds", "number of folds of cross-validation; 0: off").between(0, 1000), config.folds);
  visit(Setting(kData, "fold", "the only fold to train, from 1; 0: all").between(0, 1000), config.fold);
  visit(Setting(kData, "limit", "number of training texts to read; 0: all").least(0), config.limit);
  visit(Setting(kData, "data-memory",
                "GB of texts and token ids in memory; more go to a file beside --output; auto: a quarter of the memory")
            .metavar("NUMBER")
            .between(0, kMillion)
            .none("auto")
            .takes_none(true)
            .changes_no_numbers(),
        config.data_memory);
  visit(Setting(kData, "output", "folder for the results").metavar("DIR").required().changes_no_numbers(),
        config.output);
  visit(Setting(kData, "overwrite", "replace the run in --output").basic().changes_no_numbers().is_recorded(false),
        config.overwrite);

  constexpr std::string_view kRecipe = "Recipe";
  visit(Setting(kRecipe, "batch-size", "texts per micro-batch; auto: as many as fit the memory")
            .metavar("N")
            .basic()
            .between(1, kMillion)
            .none("auto")
            .takes_none(true),
        config.batch_size);
  visit(Setting(kRecipe, "grad-accumulation", "micro-batches per step").between(1, kMillion), config.grad_accumulation);
  visit(Setting(kRecipe, "max-length",
                "longest text, in tokens; longer ones are cut; auto: at most 1 % of the training texts are cut")
            .metavar("N")
            .basic()
            .between(2, kMillion)
            .none("auto")
            .takes_none(true),
        config.max_length);
  visit(Setting(kRecipe, "window", "pooling of the windows of long texts; none: long texts are cut")
            .one_of({"none", "mean", "max"}),
        config.window);
  visit(Setting(kRecipe, "stride", "tokens that neighbouring windows share").between(0, kMillion), config.stride);
  visit(Setting(kRecipe, "epochs", "passes over the training texts; auto: 3, or up to 20 for few texts")
            .metavar("NUMBER")
            .basic()
            .between(1e-6, 1e6)
            .none("auto")
            .takes_none(true)
            .effect(Setting::Effect::kNumbersOfPlannedSchedules),
        config.epochs);
  visit(Setting(kRecipe, "max-steps", "number of optimizer steps; overrides --epochs")
            .between(1, kMostSteps)
            .effect(Setting::Effect::kNumbersOfPlannedSchedules),
        config.max_steps);
  visit(Setting(kRecipe, "batching", "layout of batches; packed needs no padding")
            .choices({"packed", "grouped", "dynamic", "padded"})
            .check(check_batching),
        config.batching);
  visit(Setting(kRecipe, "dropout", "dropout probability, in place of the model's")
            .between(0, 1)
            .below_most(true)
            .none("as the model says"),
        config.dropout);
  visit(Setting(kRecipe, "freeze", "parts whose weights stay: embeddings, encoder, or a number of layers")
            .metavar("PART")
            .check(check_freeze),
        config.freeze);
  visit(Setting(kRecipe, "lora", "rank of LoRA adapters; 0: train all weights").basic().between(0, 4096), config.lora);
  visit(Setting(kRecipe, "lora-alpha", "scale of LoRA adapters, divided by the rank").between(1e-6, 1e6),
        config.lora_alpha);
  visit(Setting(kRecipe, "lora-dropout", "dropout probability of the input of LoRA adapters")
            .between(0, 1)
            .below_most(true),
        config.lora_dropout);
  visit(Setting(kRecipe, "lora-target-modules",
                "linear layers with LoRA adapters, e.g. query,value; without it, all layers of the encoder")
            .metavar("NAMES"),
        config.lora_target_modules);
  visit(Setting(kRecipe, "class-weights", "weights of classes in the loss: balanced, or NAME=WEIGHT,...")
            .metavar("WEIGHTS")
            .check(check_class_weights),
        config.class_weights);
  visit(Setting(kRecipe, "label-smoothing", "share of the target that is spread over all labels; 0: off")
            .between(0, 1)
            .below_most(true),
        config.label_smoothing);
  visit(Setting(kRecipe, "focal-gamma", "exponent of the focal loss, which gives more weight to hard texts; 0: off")
            .between(0, 100),
        config.focal_gamma);
  visit(Setting(kRecipe, "gradient-checkpointing", "compute layers again in backward, to save memory")
            .changes_no_numbers(),
        config.gradient_checkpointing);
  visit(Setting(kRecipe, "optimizer", "optimizer").one_of({"adamw", "adam", "sgd", "lamb"}), config.optimizer);
  visit(Setting(kRecipe, "learning-rate",
                "peak learning rate; auto: 5e-5 * (768 / hidden size)^2, at most 1e-3; or 2e-4 with --lora")
            .metavar("NUMBER")
            .basic()
            .between(0, kHuge)
            .none("auto")
            .takes_none(true),
        config.learning_rate);
  visit(Setting(kRecipe, "weight-decay", "weight decay, except for biases and layer norms").between(0, kHuge),
        config.weight_decay);
  visit(Setting(kRecipe, "adam-beta1", "decay of the mean of gradients, for adamw, adam and lamb")
            .between(0, 1)
            .below_most(true),
        config.adam_beta1);
  visit(Setting(kRecipe, "adam-beta2", "decay of the mean of squared gradients, for adamw, adam and lamb")
            .between(0, 1)
            .below_most(true),
        config.adam_beta2);
  visit(Setting(kRecipe, "adam-epsilon", "number added to the divisor, for adamw, adam (1e-8) and lamb (1e-6)")
            .between(0, kHuge)
            .none("as the optimizer has it"),
        config.adam_epsilon);
  visit(Setting(kRecipe, "max-grad-norm", "norm that gradients are clipped to; 0: off").between(0, kHuge),
        config.max_grad_norm);
  visit(Setting(kRecipe, "schedule", "learning rate schedule").choices(lr_schedule_names()).check(check_schedule_name),
        config.schedule);
  visit(Setting(kRecipe, "warmup-ratio",
                "share of the steps with a rising learning rate; auto: 0.1, or 0 for schedules without warmup")
            .metavar("NUMBER")
            .between(0, 1)
            .none("auto")
            .takes_none(true),
        config.warmup_ratio);
  visit(Setting(kRecipe, "warmup-steps", "steps with a rising learning rate; wins over --warmup-ratio")
            .between(0, kMostSteps)
            .none("by --warmup-ratio"),
        config.warmup_steps);
  visit(Setting(kRecipe, "layer-lr-decay", "factor of the learning rate from a layer to the layer below; 1: off")
            .between(1e-6, 1),
        config.layer_lr_decay);
  visit(
      Setting(kRecipe, "min-lr-ratio", "lowest share of the learning rate, for schedules with a minimum").between(0, 1),
      config.min_lr_ratio);
  visit(Setting(kRecipe, "decay-ratio", "share of the steps that decay, for warmup_stable_decay").between(0, 1),
        config.decay_ratio);
  visit(Setting(kRecipe, "lr-cycles", "waves or restarts of cosine schedules")
            .between(0, kHuge)
            .none("as the schedule has them"),
        config.lr_cycles);
  visit(Setting(kRecipe, "lr-power", "power of the polynomial schedule").between(0, kHuge), config.lr_power);
  visit(Setting(kRecipe, "lr-factor", "factor of a change, for reduce_lr_on_plateau and greedy")
            .between(1e-6, 1 - 1e-6)
            .none("as the schedule has it"),
        config.lr_factor);
  visit(Setting(kRecipe, "lr-patience", "evaluations before a change, for reduce_lr_on_plateau and greedy")
            .between(0, kMostSteps),
        config.lr_patience);
  visit(Setting(kRecipe, "ema-decay", "EMA decay of the weights per step, e.g. 0.999; 0: off")
            .between(0, 1)
            .below_most(true),
        config.ema_decay);
  visit(Setting(kRecipe, "seed", "seed of shuffling, dropout and fresh weights"), config.seed);

  constexpr std::string_view kPrecision = "Precision";
  visit(Setting(kPrecision, "precision", "number format of the computation")
            .basic()
            .choices({"fp32", "bf16", "fp16", "auto"})
            .check([](const std::string& name) { check_precision(name); }),
        config.precision);
  visit(Setting(kPrecision, "device", "device; cuda:N is GPU number N")
            .basic()
            .choices({"cpu", "cuda", "auto"})
            .check(check_device)
            .changes_no_numbers(),
        config.device);
  visit(Setting(kPrecision, "eager", "launch GPU kernels one by one, without CUDA graphs").changes_no_numbers(),
        config.eager);
  visit(Setting(kPrecision, "master-weights", "keep the model in half precision, and float32 copies in the optimizer"),
        config.master_weights);
  visit(Setting(kPrecision, "keep-norms-fp32", "keep layer norms in float32, with --master-weights"),
        config.keep_norms_fp32);
  visit(Setting(kPrecision, "loss-scale", "loss scale of fp16: dynamic, dynamic:FIRST, or a fixed number")
            .metavar("SCALE")
            .check(check_loss_scale),
        config.loss_scale);
  visit(Setting(kPrecision, "growth-interval", "steps without overflow before the loss scale grows")
            .between(1, kMostSteps),
        config.growth_interval);
  visit(Setting(kPrecision, "growth-factor", "growth of the loss scale").between(1 + 1e-6, kHuge),
        config.growth_factor);
  visit(Setting(kPrecision, "backoff-factor", "factor of the loss scale after an overflow").between(1e-6, 1 - 1e-6),
        config.backoff_factor);

  constexpr std::string_view kRanks = "Several ranks";
  visit(Setting(kRanks, "shares", "parts of a batch, with --batch-size texts each; 0: one a rank").between(0, 1e6),
        config.shares);
  visit(Setting(kRanks, "balance", "unit by which a batch is split among ranks").one_of({"rows", "tokens"}),
        config.balance);
  visit(Setting(kRanks, "gradient-compression", "number format of gradients between ranks")
            .one_of({"none", "fp16", "bf16"}),
        config.gradient_compression);
  visit(Setting(kRanks, "all-reduce", "transport of gradients; auto: shared memory on one host; backend: Gloo or NCCL")
            .one_of({"auto", "backend"}),
        config.all_reduce);
  visit(Setting(kRanks, "zero-stage", "1: split optimizer states among ranks; 0: off").between(0, 1),
        config.zero_stage);
  visit(Setting(kRanks, "timeout", "seconds that ranks wait for each other")
            .between(1, kMostSteps / 10)
            .changes_no_numbers(),
        config.timeout);

  constexpr std::string_view kRun = "Run";
  visit(Setting(kRun, "eval-every",
                "interval of evaluations on dev: steps, epoch, or a share of an epoch such as 0.25; 0: only at the end")
            .metavar("WHEN")
            .basic()
            .none("auto")
            .takes_none(true)
            .effect(Setting::Effect::kNumbersOfMetricSchedules),
        config.eval_every);
  visit(Setting(kRun, "metric", "metric on dev that chooses the best model, e.g. macro_f1").metavar("NAME").basic(),
        config.metric);
  visit(Setting(kRun, "patience", "evaluations without progress before the run ends; 0: no limit")
            .basic()
            .between(0, kMillion)
            .changes_no_numbers(),
        config.patience);
  visit(Setting(kRun, "pause-at", "share of all steps after which the run saves and ends for now")
            .between(1e-6, 1)
            .changes_no_numbers(),
        config.pause_at);
  visit(Setting(kRun, "calibrate", "fit a temperature on dev, so that scores are probabilities").changes_no_numbers(),
        config.calibrate);
  visit(Setting(kRun, "save-every",
                "interval of checkpoints: steps, epoch, or a share of an epoch such as 0.25; 0: only by --save-minutes")
            .metavar("WHEN")
            .changes_no_numbers(),
        config.save_every);
  visit(Setting(kRun, "save-minutes", "minutes between checkpoints; 0: none by time")
            .between(0, kMillion)
            .changes_no_numbers(),
        config.save_minutes);
  visit(Setting(kRun, "keep", "checkpoints to keep").between(1, kMillion).changes_no_numbers(), config.keep);
  visit(Setting(kRun, "resume", "checkpoint folder to go on from; auto: the newest in --output")
            .metavar("DIR")
            .basic()
            .changes_no_numbers(),
        config.resume);
  visit(Setting(kRun, "threads", "CPU threads; 0: OMP_NUM_THREADS, or all usable processors")
            .between(0, kMostThreads)
            .changes_no_numbers(),
        config.threads);
  visit(Setting(kRun, "diagnose", "find the origin of inf and NaN, and the best loss scale").changes_no_numbers(),
        config.diagnose);
  visit(Setting(kRun, "dry-run", "print the plan, the memory and the time; write nothing")
            .basic()
            .changes_no_numbers()
            .is_recorded(false),
        config.dry_run);
  visit(
      Setting(kRun, "reproduces", "run.json of a run to compare this run with").changes_no_numbers().is_recorded(false),
      config.reproduces);
  visit(Setting("", "restarted", "").least(0).changes_no_numbers().is_recorded(false), config.restarted);
  visit(Setting(kRun, "quiet", "print only errors").changes_no_numbers().is_recorded(false), config.quiet);
}

}  // namespace mezzo::text
