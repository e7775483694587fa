#include <fmt/format.h>

#include <iterator>
#include <memory>
#include <string_view>
#include <vector>

#include "commands.h"
#include "mezzo/text/io/standard_output.h"
#include "mezzo/text/tokenizers/tokenizer.h"
#include "model_session.h"
#include "text_source.h"

namespace mezzo::app {
namespace {

struct TokenizeFlags {
  std::filesystem::path model, vocab;
  std::vector<std::filesystem::path> data;
  text::ColumnNames columns;
  int64_t max_length = 0;
};

constexpr size_t kWriteAt = size_t{1} << 16;  // bytes

void append_list(std::string_view name, const std::vector<int32_t>& numbers, fmt::memory_buffer& out) {
  fmt::format_to(std::back_inserter(out), "\"{}\":[", name);
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) {
      out.push_back(',');
    }
    const fmt::format_int digits(numbers[i]);
    out.append(digits.data(), digits.data() + digits.size());
  }
  out.push_back(']');
}

void append_line(const text::Encoding& encoding, bool is_pair, fmt::memory_buffer& out) {
  out.push_back('{');
  append_list("input_ids", encoding.input_ids, out);
  if (is_pair) {
    out.push_back(',');
    append_list("token_type_ids", encoding.token_type_ids, out);
  }
  out.append(std::string_view("}\n"));
}

int run_tokenize(const TokenizeFlags& flags) {
  if (flags.model.empty() == flags.vocab.empty()) {
    throw UsageError("pass either --model MODEL or --vocab FILE");
  }
  if (flags.max_length != 0 && flags.max_length < 2) {
    throw UsageError(fmt::format("--max-length is {}, expected at least 2, or 0 for no limit", flags.max_length));
  }
  check_is_not_dash(flags.data);
  const auto tokenizer = flags.model.empty()
                             ? text::Tokenizer::from_vocab(flags.vocab)
                             : text::Tokenizer::from_pretrained(find_model(flags.model, text::ModelFiles::kTokenizer));
  const auto options = text::LoadRowsOptions().columns(flags.columns);
  for_each_chunk(flags.data, options, /*warns=*/true, [&](const text::TextSpans& rows) {
    fmt::memory_buffer lines;
    const bool are_pairs = !rows.text_pairs.empty();
    for (size_t i = 0; i < rows.texts.size(); ++i) {
      append_line(are_pairs ? tokenizer->encode(rows.texts[i], rows.text_pairs[i], flags.max_length)
                            : tokenizer->encode(rows.texts[i], flags.max_length),
                  are_pairs, lines);
      if (lines.size() >= kWriteAt) {
        text::write_stdout({lines.data(), lines.size()});
        lines.clear();
      }
    }
    text::write_stdout({lines.data(), lines.size()});
    text::flush_stdout();
  });
  return 0;
}

}  // namespace

Run add_tokenize(CLI::App& app) {
  auto flags = std::make_shared<TokenizeFlags>();
  app.add_option("--model", flags->model, kModelHelp)->type_name("MODEL");
  app.add_option("--vocab", flags->vocab, "vocab.txt of an uncased model, in place of --model")->type_name("FILE");
  app.add_option("--data", flags->data, "texts, in files as train reads them; without it, stdin, one text a line")
      ->type_name("FILE");
  add_columns(app, flags->columns, /*has_labels=*/false);
  app.add_option("--max-length", flags->max_length, "longest text, in tokens; 0: no limit")->capture_default_str();
  app.footer(
      "Examples:\n"
      "  mezzo tokenize --model out --data texts.csv\n"
      "  mezzo tokenize --model out <texts.txt");
  return [flags, &app] {
    check_has_data(app);
    return run_tokenize(*flags);
  };
}

}  // namespace mezzo::app
