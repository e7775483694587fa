// Fine-tunes a BERT text classifier on one or several ranks, with or without AMP. Alone, or with a launcher:
// mezzo launch --nproc 2 -- build/release/bin/example_text_classifier --model bert-base-chinese --data train.json
//     --output out --amp fp16
#include <mezzo/distributed/data_parallel/distributed_data_parallel.h>
#include <mezzo/distributed/data_parallel/distributed_sampler.h>
#include <mezzo/mezzo.h>
#include <mezzo/text/data/batching.h>
#include <mezzo/text/data/dataset.h>
#include <mezzo/text/inference/inference.h>
#include <mezzo/text/io/error_message.h>
#include <mezzo/text/models/pretrained.h>
#include <mezzo/text/tasks/metrics.h>
#include <torch/nn/functional/loss.h>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <map>

namespace dist = mezzo::distributed;
namespace F = torch::nn::functional;
namespace text = mezzo::text;

using Arguments = std::map<std::string, std::string>;

Arguments parse_arguments(int argc, char** argv) {
  Arguments arguments{{"--model", ""},         {"--data", ""},         {"--output", ""},       {"--limit", "10000"},
                      {"--dev-ratio", "0.08"}, {"--epochs", "1"},      {"--batch-size", "32"}, {"--max-length", "128"},
                      {"--lr", "3e-5"},        {"--eval-every", "50"}, {"--amp", "off"},       {"--device", "cpu"},
                      {"--seed", "123"}};
  for (int i = 1; i < argc; i += 2) {
    const auto argument = arguments.find(argv[i]);
    TORCH_CHECK_VALUE(argument != arguments.end() && i + 1 < argc, argv[i], ": unknown, or without a value");
    argument->second = argv[i + 1];
  }
  for (const auto& [name, value] : arguments) {
    TORCH_CHECK_VALUE(!value.empty(), name, " is missing. Usage: text_classifier --model FOLDER --data FILE ",
                      "--output FOLDER [--amp off|fp16|bf16] [--device cpu|cuda] …");
  }
  const std::string& amp = arguments["--amp"];
  TORCH_CHECK_VALUE(amp == "off" || amp == "fp16" || amp == "bf16", "--amp is ", amp, "; pass off, fp16 or bf16");
  return arguments;
}

void run(Arguments arguments) {
  const auto start = std::chrono::steady_clock::now();
  const auto number = [&](const char* name) { return int64_t{std::stoll(arguments[name])}; };
  const std::filesystem::path folder = arguments["--model"], output = arguments["--output"];
  const auto seed = std::stoull(arguments["--seed"]);
  const int64_t batch_size = number("--batch-size"), eval_every = number("--eval-every"), epochs = number("--epochs");
  const auto precision = text::parse_precision(arguments["--amp"] == "off" ? "fp32" : arguments["--amp"], torch::kCPU);
  const auto dtype = text::autocast_dtype(precision);  // none in fp32
  const mezzo::CpuHalfCompute fast_half;

  // The ranks of the launcher, or this process alone
  const auto environment = dist::RankEnvironment::detect().value_or(dist::RankEnvironment());
  torch::Device device(arguments["--device"]);
  if (device.is_cuda()) device.set_index(static_cast<torch::DeviceIndex>(environment.local_rank));
  dist::ProcessGroup group(environment, dist::ProcessGroupOptions().device(device));

  // Data: a random part is for evaluation
  const auto options = text::LoadRowsOptions().limit(number("--limit"));
  const auto rows = text::load_rows(arguments["--data"], options);
  const auto labels = text::LabelMap::from_rows(rows);
  const auto dataset = text::to_dataset(rows, text::label_ids(rows, labels));
  const auto sets = text::split_dataset(dataset, std::stod(arguments["--dev-ratio"]), seed);
  const auto tokenizer = text::Tokenizer::from_pretrained(folder);
  const auto tokenize = [&](const text::Dataset& set) {
    auto texts = text::tokenize(*tokenizer, set.texts, set.text_pairs, number("--max-length"));
    text::set_targets(texts, set.targets);
    return texts;
  };
  const auto train = tokenize(sets.first), dev = tokenize(sets.second);

  // Model: random weights if the folder has none
  const auto config = text::ModelConfig::from_file(folder / "config.json");
  config->label_names = labels.names();
  const auto model = text::make_model(*config, text::Head{.num_outputs = labels.size()});
  const bool is_pretrained = std::filesystem::exists(folder / "model.safetensors");
  is_pretrained ? void(text::load_pretrained(*model, folder, seed)) : model->init_weights(seed);
  if (group.rank() == 0) std::cout << (is_pretrained ? "pretrained" : "random") << " weights\n" << std::setprecision(9);
  model->to(device);
  dist::DistributedDataParallel ddp(model, group);
  mezzo::AdamW optimizer(mezzo::no_decay_groups(*model), mezzo::AdamWOptions().lr(std::stod(arguments["--lr"])));
  mezzo::GradScaler scaler(mezzo::GradScalerOptions().enabled(precision == text::Precision::kFloat16));

  const auto share = dist::DistributedSamplerOptions().num_replicas(group.size()).rank(group.rank()).seed(seed);
  dist::DistributedSampler sampler(sets.first.size(), share);
  const int64_t last_step = epochs * ((sampler.size() + batch_size - 1) / batch_size);
  int64_t step = 0;
  std::pair best(-1.0, 0.0);  // accuracy, and the negative loss, which decides between equal accuracies
  std::string best_report;
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    sampler.set_epoch(epoch);
    const auto indices = sampler.indices();
    for (int64_t begin = 0; begin < sampler.size(); begin += batch_size) {
      const auto part = std::span(indices).subspan(begin, std::min(batch_size, sampler.size() - begin));
      const auto batch =
          text::collate(train, part, text::Batching::kPacked, /*max_length=*/0, config->pad_token_id).to(device);
      optimizer.zero_grad();
      torch::Tensor loss;
      {
        const mezzo::AutocastGuard autocast(device, dtype.value_or(torch::kFloat), /*enabled=*/dtype.has_value());
        const text::DropoutSeed dropout{seed, static_cast<uint32_t>(step * group.size() + group.rank())};
        loss = F::cross_entropy(ddp(batch, dropout), batch.targets);
      }
      scaler.scale(loss).backward();  // leaves the mean of the ranks' gradients
      scaler.step(optimizer);
      scaler.update();
      if (++step % eval_every != 0 && step != last_step) continue;

      // Each rank predicts a share of the texts, and has zeros for the others: sums over the ranks have all.
      auto outputs = text::predict_outputs(*model, dev, precision, {}, {.rank = group.rank(), .of = group.size()});
      auto loss_sum = loss.detach();
      group.all_reduce(outputs);
      group.all_reduce(loss_sum);
      const auto ids = [](const torch::Tensor& t) { return std::span(t.const_data_ptr<int64_t>(), t.numel()); };
      const auto report = text::classification_report(ids(dev.targets), ids(outputs.argmax(1)), labels.names());
      if (group.rank() != 0) continue;
      const double dev_loss = F::cross_entropy(outputs, dev.targets).item<double>();
      std::cout << "step " << step << '/' << last_step << ": loss " << loss_sum.item<double>() / group.size()
                << ", dev loss " << dev_loss << ", accuracy " << report.accuracy << '\n';
      if (std::pair(report.accuracy, -dev_loss) <= best) continue;
      best = {report.accuracy, -dev_loss};
      best_report = report.to_text();
      std::vector<std::pair<std::string, torch::Tensor>> weights;
      for (const auto& item : model->named_parameters()) weights.emplace_back(item.key(), item.value());
      text::save_pretrained(*config, weights, output);
      tokenizer->save(output);
    }
  }
  group.shutdown();
  const std::chrono::duration<double, std::ratio<60>> minutes = std::chrono::steady_clock::now() - start;
  if (group.rank() == 0) std::cout << best_report << std::setprecision(3) << minutes.count() << " minutes\n";
}

int main(int argc, char** argv) try { run(parse_arguments(argc, argv)); } catch (const std::exception& error) {
  std::cerr << "text_classifier: " << text::message_of(error) << '\n';
  return 1;
}
