#include "mezzo/text/data/tokenized_texts.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace mezzo::text {
namespace {

using Ids = std::span<const int32_t>;

struct Encoded {
  Encoding encoding = {};
  std::vector<int32_t> window_lengths = {};
  int64_t lost = 0;
};

/// Puts the row of the last text behind `rows`, which texts without one share, until the first that has one.
/// @param ids  of all texts, the last included
/// @param usual  what such a row is, of the ids of a text
template <class Usual>
void add_row(Rows<int32_t>& rows, Ids row, bool is_usual, const Rows<int32_t>& ids, const Usual& usual) {
  if (is_usual && rows.empty()) return;
  while (rows.size() + 1 < ids.size()) rows.push_back(usual(ids[rows.size()]));
  rows.push_back(is_usual ? usual(ids[rows.size()]) : row);
}

/// @param token_types, window_lengths  none: zeros, and one window
void add_text(TokenizedTexts& texts, Ids ids, Ids token_types, Ids window_lengths) {
  texts.ids.push_back(ids);
  const auto zeros = [](Ids of) { return std::vector<int32_t>(of.size()); };
  const auto one_window = [](Ids of) { return std::vector<int32_t>{static_cast<int32_t>(of.size())}; };
  const bool has_types = std::ranges::any_of(token_types, [](int32_t type) { return type != 0; });
  add_row(texts.token_types, token_types, !has_types, texts.ids, zeros);
  add_row(texts.window_lengths, window_lengths, window_lengths.size() < 2, texts.ids, one_window);
}

/// @param order  the positions of all texts, in the order in which they are read
/// @param bytes_of, encode  the length and the Encoded of the text at a position
template <class BytesOf, class Encode>
TokenizedTexts encode_all(const std::vector<int64_t>& order,
                          const TokenizeOptions& options,
                          bool has_words,
                          const BytesOf& bytes_of,
                          const Encode& encode) {
  constexpr int64_t kTextsAtATime = 16384;
  constexpr size_t kBytesAtATime = size_t{32} << 20;  // of texts whose Encoded wait in memory
  const auto& memory = options.memory;
  using RowsOfIds = Rows<int32_t>;
  TokenizedTexts texts{RowsOfIds(memory), RowsOfIds(memory), RowsOfIds(memory), RowsOfIds(memory)};
  const int64_t count = std::ssize(order);
  for (int64_t first = 0, end = 0; first < count; first = end) {
    for (size_t bytes = 0; end < std::min(count, first + kTextsAtATime) && bytes < kBytesAtATime; ++end) {
      bytes += bytes_of(order[end]);
    }
    std::vector<Encoded> some(static_cast<size_t>(end - first));
    const int64_t texts_per_task = std::clamp<int64_t>((end - first) / (4 * at::get_num_threads()), 1, 64);
    at::parallel_for(first, end, texts_per_task, [&, first](int64_t begin, int64_t end_of_task) {
      for (int64_t i = begin; i < end_of_task; ++i) some[i - first] = encode(order[i]);
    });
    for (const auto& [encoding, window_lengths, lost] : some) {
      add_text(texts, encoding.input_ids, encoding.token_type_ids, window_lengths);
      if (has_words) texts.word_ids.push_back(encoding.word_ids);
      texts.truncated += encoding.truncated;
      texts.lost_tokens += lost;
    }
    if (options.on_texts) options.on_texts(end);
  }
  if (std::ranges::is_sorted(order)) return texts;
  std::vector<int64_t> places(order.size());
  for (int64_t i = 0; i < count; ++i) places[order[i]] = i;
  for (Rows<int32_t>* rows : {&texts.ids, &texts.window_lengths, &texts.token_types, &texts.word_ids}) {
    *rows = rows->select(places);
  }
  return texts;
}

/// @param encode  makes an Encoding with at most that number of tokens; 0: all
template <class Encode>
Encoded encode_cut(int64_t max_length, bool count_lost, const Encode& encode) {
  Encoded encoded{.encoding = encode(max_length)};
  if (encoded.encoding.truncated && count_lost) {  // an encoder that stops at the limit does not know the rest
    encoded.lost = std::ssize(encode(0).input_ids) - std::ssize(encoded.encoding.input_ids);
  }
  return encoded;
}

}  // namespace

TokenizedTexts subspan(const TokenizedTexts& texts, int64_t begin, int64_t count) {
  return {.ids = texts.ids.subspan(begin, count),
          .window_lengths = texts.window_lengths.subspan(begin, count),
          .token_types = texts.token_types.subspan(begin, count),
          .word_ids = texts.word_ids.subspan(begin, count)};
}

void append(TokenizedTexts& texts, TokenizedTexts&& more) {
  const auto row = [](const Rows<int32_t>& rows, size_t i) { return rows.empty() ? Ids() : rows[i]; };
  for (size_t i = 0; i < more.ids.size(); ++i) {
    add_text(texts, more.ids[i], row(more.token_types, i), row(more.window_lengths, i));
  }
  texts.word_ids.append(more.word_ids);
  texts.truncated += more.truncated;
  texts.lost_tokens += more.lost_tokens;
  more = {};
}

TokenizedTexts tokenize(const Tokenizer& tokenizer,
                        const Texts& texts,
                        const Texts& text_pairs,
                        int64_t max_length,
                        const TokenizeOptions& options) {
  TORCH_CHECK_VALUE(text_pairs.empty() || text_pairs.size() == texts.size(), "tokenize: ", texts.size(),
                    " texts cannot be paired with ", text_pairs.size());
  const auto bytes_of = [&](int64_t i) { return texts[i].size() + (text_pairs.empty() ? 0 : text_pairs[i].size()); };
  return encode_all(texts.storage_order(), options, /*has_words=*/false, bytes_of, [&](int64_t i) {
    return encode_cut(max_length, options.count_lost, [&](int64_t most) {
      return text_pairs.empty() ? tokenizer.encode(texts[i], most) : tokenizer.encode(texts[i], text_pairs[i], most);
    });
  });
}

TokenizedTexts tokenize(const Tokenizer& tokenizer,
                        std::span<const std::vector<std::string>> words,
                        int64_t max_length,
                        const TokenizeOptions& options) {
  std::vector<int64_t> order(words.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto bytes_of = [&](int64_t i) { return words[i].size() * sizeof(std::string); };
  return encode_all(order, options, /*has_words=*/true, bytes_of, [&](int64_t i) {
    return encode_cut(max_length, options.count_lost,
                      [&](int64_t most) { return tokenizer.encode_words(words[i], most); });
  });
}

TokenizedTexts tokenize_windows(const Tokenizer& tokenizer,
                                const Texts& texts,
                                int64_t max_length,
                                int64_t stride,
                                const TokenizeOptions& options) {
  const auto bytes_of = [&](int64_t i) { return texts[i].size(); };
  return encode_all(texts.storage_order(), options, /*has_words=*/false, bytes_of, [&](int64_t i) {
    Encoded all;
    for (const Encoding& window : tokenizer.encode_windows(texts[i], max_length, stride)) {
      const auto append_to = [](std::vector<int32_t>& ids, Ids more) {
        ids.insert(ids.end(), more.begin(), more.end());
      };
      append_to(all.encoding.input_ids, window.input_ids);
      append_to(all.encoding.token_type_ids, window.token_type_ids);
      all.window_lengths.push_back(static_cast<int32_t>(window.input_ids.size()));
    }
    return all;
  });
}

int64_t TokenizedTexts::longest(int64_t text) const {
  return window_lengths.empty() ? std::ssize(ids[text]) : std::ranges::max(window_lengths[text]);
}

int64_t TokenizedTexts::count_tokens() const {
  int64_t count = 0;
  for (const auto tokens : ids) count += std::ssize(tokens);
  return count;
}

std::string describe_cut(int64_t max_length, int64_t read, int64_t lost) {
  const double share = static_cast<double>(lost) / static_cast<double>(read + lost);
  return fmt::format("truncated to {} tokens: {:.1f} % of all tokens are not read", max_length, 100 * share);
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
  TORCH_CHECK_VALUE(has_targets, file, ": no token of any word is read with --max-length ", max_length,
                    "; pass a larger number, or texts with words that the tokenizer knows");
}

void check_has_tokens(const TokenizedTexts& texts, const std::function<std::string(int64_t)>& place) {
  const auto found = std::ranges::find_if(texts.ids, [](Ids ids) { return ids.empty(); });
  if (found == texts.ids.end()) {
    return;
  }
  TORCH_CHECK_VALUE(false, place(found - texts.ids.begin()), ": the tokenizer makes no token of this text, not even a ",
                    "special one; remove it, or give tokenizer.json a post_processor that adds special tokens");
}

}  // namespace mezzo::text
