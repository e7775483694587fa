#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mezzo/text/data/dataset.h"
#include "mezzo/text/tasks/task.h"
#include "mezzo/text/train/step_interval.h"

namespace mezzo::text {

/// The maximum number of threads. No processor runs more at a time, and the OpenMP runtime crashes
/// with some thousands.
constexpr int64_t kMostThreads = 1024;

/// Settings of a training run, named as the flags of `mezzo train`. The defaults are the usual
/// recipe for fine-tuning: AdamW, 3 epochs or more, a linear schedule with warmup, clipped
/// gradients, batches of 32.
struct TrainConfig {
  std::filesystem::path model;               ///< Hugging Face folder to start from; or `model_config` and `vocab`
  std::filesystem::path model_config;        ///< config.json of a model with new weights
  std::filesystem::path vocab;               ///< vocab.txt; only with `model_config`
  bool new_head = false;                     ///< with `model`: draws a new head, for the labels of `train`
  std::string task;                          ///< a problem_type; empty: of a trained head, else single labels
  std::vector<std::filesystem::path> train;  ///< data files
  std::vector<std::filesystem::path> dev;    ///< data files; empty: `dev_ratio` of the training rows
  std::vector<std::filesystem::path> test;   ///< data files; empty: the final report is on dev
  ColumnNames columns;                       ///< of the data files, and the format of tables
  std::string labels;                        ///< all labels in order, separated by commas; empty: from `train`
  double dev_ratio = 0.08;                   ///< 0 trains on all rows; ignored if `dev` is given
  bool stratify = false;                     ///< the dev part of `dev_ratio` has the same share of each class
  int64_t folds = 0;                         ///< number of parts of the training rows, instead of `dev_ratio`; 0: off
  int64_t fold = 0;                          ///< with `folds`: number of the dev part, from 1; 0: each in turn
  std::optional<double> data_memory;         ///< GB of texts and token ids in memory; nullopt: a quarter of the memory
  std::filesystem::path output;              ///< folder for the results
  bool overwrite = false;                    ///< replaces a run in `output`

  std::string precision = "auto";          ///< fp32, bf16, fp16, auto
  std::string device = "auto";             ///< cpu, cuda, cuda:N, auto
  bool eager = false;                      ///< on GPUs: records no step into a graph
  bool master_weights = false;             ///< model in bf16 or fp16, float32 masters in the optimizer
  bool keep_norms_fp32 = false;            ///< with `master_weights`: layer norms stay in float32
  std::optional<int64_t> batch_size = 32;  ///< texts per micro-batch; nullopt: the largest number that fits the memory
  int64_t grad_accumulation = 1;           ///< micro-batches per optimizer step
  /// Tokens to which texts are truncated, including [CLS] and [SEP]. The default is the smallest
  /// multiple of 32 that truncates at most 1 % of the training texts, limited by the model's
  /// positions.
  std::optional<int64_t> max_length;
  std::string window = "none";       ///< windows of long texts: none (texts are truncated); mean or max of the outputs
  int64_t stride = 0;                ///< with windows: tokens that a window shares with the one before
  std::optional<double> epochs;      ///< nullopt: 3, or more for 300 steps, at most 20
  std::optional<int64_t> max_steps;  ///< optimizer steps; overrides `epochs`
  std::string batching = "packed";   ///< packed, grouped, dynamic, padded
  std::string freeze;                ///< "embeddings", "encoder", or a number of layers; empty: nothing
  int64_t lora = 0;                  ///< rank of LoRA's factors; only they and the head are trained; 0: off
  double lora_alpha = 16;            ///< with `lora`: factor of their product, divided by the rank
  double lora_dropout = 0;           ///< with `lora`: dropout probability of the factors' input
  std::string lora_target_modules;   ///< with `lora`: names of linear layers, "query,value"; empty: all in the layers
  std::string class_weights;         ///< of the loss: "balanced" or "NAME=WEIGHT,…"; empty: equal weights
  double label_smoothing = 0;        ///< of the loss: share of the target that is spread over all labels
  double focal_gamma = 0;            ///< exponent of the focal loss; 0: off
  std::optional<double> dropout;     ///< replaces all of the model's probabilities
  bool gradient_checkpointing = false;  ///< recomputes layers in backward, to save memory

  std::string optimizer = "adamw";  ///< adamw, adam, sgd, lamb
  /// nullopt: 5e-5 · (768 / hidden size)², at most 1e-3; or 2e-4 with `lora`
  std::optional<double> learning_rate;
  double weight_decay = 0.01;          ///< except for biases and layer norms
  double adam_beta1 = 0.9;             ///< adamw, adam, lamb: decay per step of the mean of gradients
  double adam_beta2 = 0.999;           ///< adamw, adam, lamb: decay per step of the mean of squared gradients
  std::optional<double> adam_epsilon;  ///< adamw, adam, lamb: added to the divisor; nullopt: 1e-8, or 1e-6 for lamb
  double max_grad_norm = 1;            ///< limit of the total gradient norm; 0: off
  double ema_decay = 0;                ///< decay per step of the averaged weights, which are evaluated and kept; 0: off
  double layer_lr_decay = 1;           ///< factor of the learning rate from a layer to the layer below; 1: off
  std::string schedule = "linear";     ///< a SchedulerType of transformers: constant, linear, cosine, …
  /// The share of the steps with a rising learning rate, from 0. nullopt: 0.1, or 0 for constant,
  /// reduce_lr_on_plateau and greedy.
  std::optional<double> warmup_ratio;
  std::optional<int64_t> warmup_steps;  ///< steps with a rising learning rate; overrides `warmup_ratio`
  double min_lr_ratio = 0;              ///< lowest share of the learning rate, for schedules with a minimum
  double decay_ratio = 0.1;             ///< warmup_stable_decay: share of the steps that decay
  std::optional<double> lr_cycles;  ///< cosines: waves; cosine_with_restarts: restarts; nullopt: transformers' value
  double lr_power = 1;              ///< polynomial
  std::optional<double> lr_factor;  ///< reduce_lr_on_plateau, greedy; nullopt: 0.1 and 0.95
  int64_t lr_patience = 10;         ///< reduce_lr_on_plateau, greedy: evaluations without change

  std::string loss_scale = "dynamic";  ///< fp16 only: dynamic, dynamic:FIRST (65536 without it), or a fixed number
  int64_t growth_interval = 2000;      ///< steps without overflow before the loss scale grows
  double growth_factor = 2;            ///< growth of the loss scale
  double backoff_factor = 0.5;         ///< factor of the loss scale after an overflow

  // With several ranks, `batch_size` is the size of a share; a rank has one or several shares.
  std::string balance = "rows";               ///< splits a batch into ranks by equal numbers of rows or tokens
  std::string gradient_compression = "none";  ///< of gradients between ranks: none, fp16, bf16
  std::string all_reduce = "auto";            ///< of gradients: auto (shared memory on one host), backend
  int64_t shares = 0;                         ///< parts of a batch, of `batch_size` texts each; 0: one per rank
  int64_t zero_stage = 0;                     ///< 1: optimizer states are sharded among the ranks
  int64_t timeout = 600;                      ///< seconds that ranks wait for each other

  /// Time between evaluations on dev; never: only at the end. nullopt: default_eval_interval().
  std::optional<StepInterval> eval_every;
  std::string metric;        ///< metric on dev that chooses the best model; empty: the task's first, such as accuracy
  int64_t patience = 0;      ///< evaluations on dev without progress before the run ends; 0: no limit
  double pause_at = 1;       ///< share of all steps after which a run evaluates, saves and ends for now
  bool calibrate = false;    ///< whether to fit a temperature on dev for the kept model
  StepInterval save_every;   ///< time between checkpoints, with one after the last step; never: none by steps
  double save_minutes = 10;  ///< minutes between checkpoints; 0: none by time
  int64_t keep = 2;          ///< checkpoints to keep
  std::string resume;     ///< empty, "auto" (the newest intact checkpoint of `output`, if any), or a checkpoint folder
  uint64_t seed = 123;    ///< of shuffling, dropout and new weights
  int64_t threads = 0;    ///< at most kMostThreads; 0: see set_threads()
  int64_t limit = 0;      ///< number of rows to read from the training file; 0: all
  bool diagnose = false;  ///< traces every skipped step again, and counts the exponents of gradients
  bool quiet = false;     ///< prints only errors
  std::filesystem::path reproduces;  ///< run.json of a run to compare with; differences are reported
  int64_t restarted = 0;             ///< set by a launcher: number of ranks at its first start; 0: this is the first
  bool dry_run = false;              ///< prints the plan, the memory and the time; writes nothing

  /// @throws c10::ValueError  naming the flag, its value and the valid values
  void validate() const;

  /// Whether there will be texts to choose the best model.
  bool has_dev() const;
  /// The options of the loss.
  LossOptions loss() const;
  /// Whether `loss_scale` is fixed, and the scale of the first step.
  std::pair<bool, double> parsed_loss_scale() const;

  /// Every setting as (flag without dashes, value), for records and reports.
  std::vector<std::pair<std::string, std::string>> settings() const;
};

/// The names that apply_recipe() accepts: "default" and "reference".
std::vector<std::string> recipe_names();

/// Sets several settings of `config` at once. "default" changes nothing. "reference" is the recipe
/// of the Python program in mezzo's comparisons: 1 epoch, a constant learning rate of 3e-5, no
/// warmup, no clipping, 128 tokens, an evaluation every 50 steps.
/// @throws c10::ValueError  for another name
void apply_recipe(TrainConfig& config, const std::string& name);

/// The default of TrainConfig::warmup_ratio.
double default_warmup_ratio(std::string_view schedule);

/// The warnings of train() about the texts, such as dev texts that also occur in training. Reads
/// all texts, and no weights. Thread-safe.
/// @throws c10::ValueError  for wrong texts, labels or config.json, as far as visible without a
///     tokenizer
std::vector<std::string> data_warnings(const TrainConfig& config);

}  // namespace mezzo::text
