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

/// More than any processor runs at once; with some thousands the OpenMP runtime crashes.
constexpr int64_t kMostThreads = 1024;

/// Settings of a training run, named as the flags of `mezzo train`. The defaults are the usual recipe for fine-tuning:
/// AdamW, 3 epochs or more, a linear schedule with warmup, clipped gradients, batches of 32.
struct TrainConfig {
  std::filesystem::path model;               ///< Hugging Face folder to start from, or …
  std::filesystem::path model_config;        ///< … config.json of a model with fresh weights, with `vocab`
  std::filesystem::path vocab;               ///< vocab.txt; only with `model_config`
  bool new_head = false;                     ///< with `model`: its head is drawn afresh, for the labels of `train`
  std::string task;                          ///< a problem_type; empty: that of a trained head, else single labels
  std::vector<std::filesystem::path> train;  ///< data files
  std::vector<std::filesystem::path> dev;    ///< data files; none: `dev_ratio` of the training rows
  std::vector<std::filesystem::path> test;   ///< data files; none: the final report is on dev
  ColumnNames columns;                       ///< of the data files, and how tables are written
  std::string labels;                 ///< all of them in their order, with commas between; empty: those of `train`
  double dev_ratio = 0.08;            ///< 0 trains on all rows; not used where `dev` is given
  bool stratify = false;              ///< the dev part of `dev_ratio` has the same share of each class
  int64_t folds = 0;                  ///< in place of `dev_ratio`: number of parts of the training rows; 0: off
  int64_t fold = 0;                   ///< with `folds`: the one that is dev, from 1; 0: each in its turn
  std::optional<double> data_memory;  ///< GB of texts and token ids in memory; nullopt: a quarter of the memory
  std::filesystem::path output;       ///< folder for the results
  bool overwrite = false;             ///< replace a run that `output` holds

  std::string precision = "auto";          ///< fp32, bf16, fp16, auto
  std::string device = "auto";             ///< cpu, cuda, cuda:N, auto
  bool eager = false;                      ///< on GPUs: no step is recorded into a graph
  bool master_weights = false;             ///< model in bf16 or fp16, float32 masters in the optimizer
  bool keep_norms_fp32 = false;            ///< with `master_weights`: layer norms stay in float32
  std::optional<int64_t> batch_size = 32;  ///< texts per micro-batch; nullopt: as many as fit the memory
  int64_t grad_accumulation = 1;           ///< micro-batches per optimizer step
  /// Tokens to truncate texts to, [CLS] and [SEP] included. nullopt: the smallest multiple of 32 that truncates at most
  /// 1 % of the training texts, at most the model's positions.
  std::optional<int64_t> max_length;
  std::string window = "none";       ///< of longer texts: none (they are cut), mean, max (pooled outputs of windows)
  int64_t stride = 0;                ///< with windows: tokens that one has of the one before
  std::optional<double> epochs;      ///< nullopt: 3, or as many as 300 steps take, at most 20
  std::optional<int64_t> max_steps;  ///< optimizer steps; wins over `epochs`
  std::string batching = "packed";   ///< packed, grouped, dynamic, padded
  std::string freeze;                ///< "embeddings", a number of layers with them, or "encoder"; empty: nothing
  int64_t lora = 0;                  ///< rank of LoRA's factors, which alone are trained beside the head; 0: off
  double lora_alpha = 16;            ///< with `lora`: their product counts so much, divided by the rank
  double lora_dropout = 0;           ///< with `lora`: dropout probability of the factors' input
  std::string lora_target_modules;   ///< with `lora`: names of linear layers, "query,value"; empty: all in the layers
  std::string class_weights;         ///< of the loss: "balanced" or "NAME=WEIGHT,…"; empty: all labels weigh the same
  double label_smoothing = 0;        ///< of the loss: share of the target that goes to all labels alike
  double focal_gamma = 0;            ///< exponent of the focal loss; 0: off
  std::optional<double> dropout;     ///< replaces all of the model's probabilities
  bool gradient_checkpointing = false;  ///< layers are computed again in backward, to save memory

  std::string optimizer = "adamw";  ///< adamw, adam, sgd, lamb
  /// nullopt: 5e-5 · (768 / hidden size)², at most 1e-3; or 2e-4 with `lora`
  std::optional<double> learning_rate;
  double weight_decay = 0.01;          ///< of all but biases and layer norms
  double adam_beta1 = 0.9;             ///< adamw, adam, lamb: decay per step of the mean of gradients
  double adam_beta2 = 0.999;           ///< adamw, adam, lamb: decay per step of the mean of squared gradients
  std::optional<double> adam_epsilon;  ///< adamw, adam, lamb: added to the divisor; nullopt: 1e-8, of lamb 1e-6
  double max_grad_norm = 1;            ///< total gradient norm is clipped to it; 0: off
  double ema_decay = 0;                ///< of the moving average of the weights that is evaluated and kept; 0: off
  double layer_lr_decay = 1;           ///< of a layer's learning rate against the one above it; 1: off
  std::string schedule = "linear";     ///< a SchedulerType of transformers: constant, linear, cosine, …
  /// Share of the steps over which the learning rate rises from 0. nullopt: 0.1, or 0 for constant,
  /// reduce_lr_on_plateau and greedy.
  std::optional<double> warmup_ratio;
  std::optional<int64_t> warmup_steps;  ///< steps of the rise; wins over `warmup_ratio`
  double min_lr_ratio = 0;              ///< share of the learning rate that schedules with a minimum end at
  double decay_ratio = 0.1;             ///< warmup_stable_decay: share of the steps that decay
  std::optional<double> lr_cycles;      ///< cosines: waves; cosine_with_restarts: restarts; nullopt: as transformers
  double lr_power = 1;                  ///< polynomial
  std::optional<double> lr_factor;      ///< reduce_lr_on_plateau, greedy; nullopt: 0.1 and 0.95
  int64_t lr_patience = 10;             ///< reduce_lr_on_plateau, greedy: evaluations without change

  std::string loss_scale = "dynamic";  ///< fp16 only: dynamic, dynamic:FIRST (65536 without it), or a fixed number
  int64_t growth_interval = 2000;
  double growth_factor = 2;
  double backoff_factor = 0.5;

  // With several ranks, `batch_size` is each share's, of which a rank has one or several.
  std::string balance = "rows";               ///< what ranks get the same number of: rows, tokens
  std::string gradient_compression = "none";  ///< of what ranks send each other: none, fp16, bf16
  std::string all_reduce = "auto";            ///< of gradients: auto (shared memory on one host), backend
  int64_t shares = 0;                         ///< parts of a batch, of `batch_size` texts each; 0: one a rank
  int64_t zero_stage = 0;                     ///< 1: optimizer states are sharded among the ranks
  int64_t timeout = 600;                      ///< seconds that ranks wait for each other

  /// Time between evaluations on dev; never: only at the end. nullopt: default_eval_interval().
  std::optional<StepInterval> eval_every;
  std::string metric;        ///< of dev, by which the best model is chosen; empty: the task's own, such as accuracy
  int64_t patience = 0;      ///< evaluations on dev without a better model after which the run ends; 0: it goes on
  double pause_at = 1;       ///< share of all steps after which a run ends for now, evaluated, to be resumed
  bool calibrate = false;    ///< whether a temperature is fitted on dev to the model that is kept
  StepInterval save_every;   ///< time between checkpoints, and one after the last step; never: none by steps
  double save_minutes = 10;  ///< minutes between checkpoints; 0: none by time
  int64_t keep = 2;          ///< checkpoints kept
  std::string resume;  ///< empty, "auto" (the newest intact checkpoint of `output`, if any), or a checkpoint folder
  uint64_t seed = 123;
  int64_t threads = 0;    ///< 0: as set_threads() chooses; up to kMostThreads
  int64_t limit = 0;      ///< read only so many rows of the training file; 0: all
  bool diagnose = false;  ///< trace every skipped step again, and count the exponents of gradients
  bool quiet = false;
  std::filesystem::path reproduces;  ///< run.json of a run: where this one is another, it says so
  int64_t restarted = 0;             ///< by a launcher: the ranks of its first start; 0: this is the first
  bool dry_run = false;              ///< print the plan, the memory and the time it takes; write nothing

  /// @throws c10::ValueError  naming the flag, what it was and what it may be.
  void validate() const;

  /// Whether there will be texts to choose the best model by.
  bool has_dev() const;
  LossOptions loss() const;
  /// Whether `loss_scale` stays, and the scale of the first step.
  std::pair<bool, double> parsed_loss_scale() const;

  /// Every setting as (flag without dashes, value), for records and reports.
  std::vector<std::pair<std::string, std::string>> settings() const;
};

/// The names that apply_recipe() takes: "default" and "reference".
std::vector<std::string> recipe_names();

/// Sets several settings of `config` at once. "reference" is the recipe of the Python program that mezzo's numbers are
/// compared with: 1 epoch, a constant learning rate of 3e-5, no warmup, no clipping, 128 tokens, an evaluation every
/// 50 steps. "default" changes nothing.
/// @throws c10::ValueError  for another name
void apply_recipe(TrainConfig& config, const std::string& name);

/// The default of TrainConfig::warmup_ratio.
double default_warmup_ratio(std::string_view schedule);

/// The warnings that train() gives of the texts, such as dev texts that are training texts; empty: none. Reads all
/// texts, and no weights. Thread-safe.
/// @throws c10::ValueError  for what is wrong with texts, labels or config.json, as far as it shows without a tokenizer
std::vector<std::string> data_warnings(const TrainConfig& config);

}  // namespace mezzo::text
