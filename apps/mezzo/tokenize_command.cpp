#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "commands.h"
#include "mezzo/text/bert_tokenizer.h"
#include "text_source.h"

namespace mezzo::app {
namespace {

struct Flags {
  std::filesystem::path model, vocab, data;
  int64_t max_length = 0;
};

int run_tokenize(const Flags& flags) {
  if (flags.model.empty() == flags.vocab.empty()) {
    throw UsageError("pass either --model DIR or --vocab FILE");
  }
  const auto tokenizer = flags.model.empty() ? text::BertTokenizer::from_vocab(flags.vocab)
                                             : text::BertTokenizer::from_pretrained(flags.model);
  for_each_chunk(flags.data, [&](const std::vector<std::string>& texts) {
    for (const std::string& one : texts) {
      fmt::print("{{\"input_ids\":[{}]}}\n", fmt::join(tokenizer.encode(one, flags.max_length).input_ids, ","));
    }
    std::fflush(stdout);
  });
  return 0;
}

}  // namespace

Run add_tokenize(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  app.add_option("--model", flags->model, "Hugging Face folder");
  app.add_option("--vocab", flags->vocab, "vocab.txt of an uncased model");
  app.add_option("--data", flags->data, "texts: .json, .jsonl, .csv, .tsv, or .txt with one a line; stdin without it");
  app.add_option("--max-length", flags->max_length, "tokens a text is cut to; 0: no limit")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  return [flags] { return run_tokenize(*flags); };
}

}  // namespace mezzo::app
