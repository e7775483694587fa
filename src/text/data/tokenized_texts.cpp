#include "mezzo/text/data/tokenized_texts.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <iterator>

namespace mezzo::text {
namespace {

/// Puts the rows of `more` behind those of `rows`. Where one has none at all, `row_of` makes what that means for a
/// text.
template <class RowOf>
void append_rows(std::vector<std::vector<int32_t>>& rows,
                 const std::vector<std::vector<int32_t>>& ids,
                 std::vector<std::vector<int32_t>>& more,
                 const std::vector<std::vector<int32_t>>& more_ids,
                 const RowOf& row_of) {
  if (rows.empty() && more.empty()) return;
  if (rows.empty()) std::ranges::transform(ids, std::back_inserter(rows), row_of);
  if (more.empty()) {
    std::ranges::transform(more_ids, std::back_inserter(rows), row_of);
  } else {
    std::ranges::move(more, std::back_inserter(rows));
  }
}

}  // namespace

TokenizedTexts subspan(const TokenizedTexts& texts, int64_t begin, int64_t count) {
  const auto part = [&](const std::vector<std::vector<int32_t>>& rows) {
    return rows.empty() ? rows : std::vector<std::vector<int32_t>>(rows.begin() + begin, rows.begin() + begin + count);
  };
  return {.ids = part(texts.ids),
          .window_lengths = part(texts.window_lengths),
          .token_types = part(texts.token_types),
          .word_ids = part(texts.word_ids)};
}

void append(TokenizedTexts& texts, TokenizedTexts&& more) {
  const auto zeros = [](const auto& ids) { return std::vector<int32_t>(ids.size()); };
  const auto one_window = [](const auto& ids) { return std::vector<int32_t>{static_cast<int32_t>(ids.size())}; };
  append_rows(texts.token_types, texts.ids, more.token_types, more.ids, zeros);
  append_rows(texts.window_lengths, texts.ids, more.window_lengths, more.ids, one_window);
  std::ranges::move(more.word_ids, std::back_inserter(texts.word_ids));
  std::ranges::move(more.ids, std::back_inserter(texts.ids));
  texts.truncated += more.truncated;
  texts.lost_tokens += more.lost_tokens;
  more = {};
}

TokenizedTexts tokenize(const Tokenizer& tokenizer,
                        std::span<const std::string> texts,
                        std::span<const std::string> text_pairs,
                        int64_t max_length,
                        bool count_lost) {
  TORCH_CHECK_VALUE(text_pairs.empty() || text_pairs.size() == texts.size(), "tokenize: ", texts.size(),
                    " texts cannot be paired with ", text_pairs.size());
  constexpr int64_t kTextsPerTask = 64;
  TokenizedTexts tokenized;
  tokenized.ids.resize(texts.size());
  tokenized.token_types.resize(texts.size());
  std::atomic<int64_t> truncated = 0, lost = 0;
  std::atomic<bool> has_types = false;
  at::parallel_for(0, static_cast<int64_t>(texts.size()), kTextsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Encoding encoding = text_pairs.empty() ? tokenizer.encode(texts[i], max_length)
                                             : tokenizer.encode(texts[i], text_pairs[i], max_length);
      truncated += encoding.truncated;
      if (encoding.truncated && count_lost) {  // one that stops at the limit does not know what was left
        const Encoding whole =
            text_pairs.empty() ? tokenizer.encode(texts[i]) : tokenizer.encode(texts[i], text_pairs[i]);
        lost += std::ssize(whole.input_ids) - std::ssize(encoding.input_ids);
      }
      tokenized.ids[i] = std::move(encoding.input_ids);
      if (std::ranges::any_of(encoding.token_type_ids, [](int32_t type) { return type != 0; })) {
        has_types = true;
        tokenized.token_types[i] = std::move(encoding.token_type_ids);
      }
    }
  });
  tokenized.truncated = truncated;
  tokenized.lost_tokens = lost;
  if (!has_types) {
    tokenized.token_types.clear();
  }
  for (size_t i = 0; i < tokenized.token_types.size(); ++i) {
    tokenized.token_types[i].resize(tokenized.ids[i].size());  // zeros, where a text has no other
  }
  return tokenized;
}

TokenizedTexts tokenize(const Tokenizer& tokenizer,
                        std::span<const std::vector<std::string>> words,
                        int64_t max_length,
                        bool count_lost) {
  constexpr int64_t kTextsPerTask = 64;
  TokenizedTexts tokenized;
  tokenized.ids.resize(words.size());
  tokenized.word_ids.resize(words.size());
  std::atomic<int64_t> truncated = 0, lost = 0;
  at::parallel_for(0, static_cast<int64_t>(words.size()), kTextsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Encoding encoding = tokenizer.encode_words(words[i], max_length);
      truncated += encoding.truncated;
      if (encoding.truncated && count_lost) {
        lost += std::ssize(tokenizer.encode_words(words[i]).input_ids) - std::ssize(encoding.input_ids);
      }
      tokenized.ids[i] = std::move(encoding.input_ids);
      tokenized.word_ids[i] = std::move(encoding.word_ids);
    }
  });
  tokenized.truncated = truncated;
  tokenized.lost_tokens = lost;
  return tokenized;
}

TokenizedTexts tokenize_windows(const Tokenizer& tokenizer,
                                std::span<const std::string> texts,
                                int64_t max_length,
                                int64_t stride) {
  constexpr int64_t kTextsPerTask = 64;
  TokenizedTexts tokenized;
  tokenized.ids.resize(texts.size());
  tokenized.token_types.resize(texts.size());
  tokenized.window_lengths.resize(texts.size());
  std::atomic<bool> has_types = false;
  at::parallel_for(0, static_cast<int64_t>(texts.size()), kTextsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (const Encoding& window : tokenizer.encode_windows(texts[i], max_length, stride)) {
        tokenized.ids[i].insert(tokenized.ids[i].end(), window.input_ids.begin(), window.input_ids.end());
        const auto& types = window.token_type_ids;
        tokenized.token_types[i].insert(tokenized.token_types[i].end(), types.begin(), types.end());
        if (std::ranges::any_of(types, [](int32_t type) { return type != 0; })) has_types = true;
        tokenized.window_lengths[i].push_back(static_cast<int32_t>(window.input_ids.size()));
      }
    }
  });
  if (!has_types) {
    tokenized.token_types.clear();
  }
  if (std::ranges::all_of(tokenized.window_lengths, [](const auto& lengths) { return lengths.size() == 1; })) {
    tokenized.window_lengths.clear();
  }
  return tokenized;
}

int64_t TokenizedTexts::longest(int64_t text) const {
  return window_lengths.empty() ? std::ssize(ids[text]) : std::ranges::max(window_lengths[text]);
}

int64_t TokenizedTexts::count_tokens() const {
  int64_t count = 0;
  for (const auto& tokens : ids) count += std::ssize(tokens);
  return count;
}

std::string describe_cut(int64_t max_length, int64_t read, int64_t lost) {
  const double share = static_cast<double>(lost) / static_cast<double>(read + lost);
  return fmt::format("cut to {} tokens: {:.1f} % of all tokens are not read", max_length, 100 * share);
}

int64_t TokenizedTexts::num_windows(int64_t text) const {
  return window_lengths.empty() ? 1 : std::ssize(window_lengths[text]);
}

void set_targets(TokenizedTexts& texts, const at::Tensor& targets) {
  if (texts.word_ids.empty()) {
    texts.targets = targets;
    return;
  }
  size_t longest = 0;
  for (const auto& ids : texts.ids) longest = std::max(longest, ids.size());
  const auto count = static_cast<int64_t>(texts.ids.size());
  texts.targets = at::full({count, static_cast<int64_t>(longest)}, TokenizedTexts::kNoTarget, at::kInt);
  auto of_tokens = texts.targets.accessor<int32_t, 2>();
  const auto of_words = targets.accessor<int32_t, 2>();
  for (int64_t i = 0; i < count; ++i) {
    int32_t last = -1;
    const auto& words = texts.word_ids[i];
    for (size_t token = 0; token < words.size(); ++token) {
      if (words[token] >= 0 && words[token] != last)
        of_tokens[i][static_cast<int64_t>(token)] = of_words[i][words[token]];
      last = words[token];
    }
  }
}

int64_t TokenizedTexts::count_targets(std::span<const int64_t> indices) const {
  if (word_ids.empty() || !targets.defined()) return std::ssize(indices);
  int64_t count = 0;
  const auto of_tokens = targets.accessor<int32_t, 2>();
  for (const int64_t index : indices) {
    for (int64_t token = 0; token < targets.size(1); ++token) count += of_tokens[index][token] != kNoTarget;
  }
  return count;
}

void check_reads_words(const TokenizedTexts& texts, const std::string& file, int64_t max_length) {
  const bool has_targets = texts.word_ids.empty() || texts.targets.ge(0).any().item<bool>();
  TORCH_CHECK_VALUE(has_targets, file, ": of no word a token is read with --max-length ", max_length,
                    "; pass a longer one, or texts whose words the tokenizer knows");
}

void check_has_tokens(const TokenizedTexts& texts, const std::function<std::string(int64_t)>& place) {
  const auto found = std::ranges::find_if(texts.ids, [](const std::vector<int32_t>& ids) { return ids.empty(); });
  if (found == texts.ids.end()) {
    return;
  }
  TORCH_CHECK_VALUE(false, place(found - texts.ids.begin()), ": the tokenizer makes no token of this text, not even a ",
                    "special one; remove it, or give tokenizer.json a post_processor that adds special tokens");
}

}  // namespace mezzo::text
