// What splits a text into the words that a tokenizer's model reads: the section "pre_tokenizer" of
// tokenizer.json.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/io/utf8.h"
#include "text/tokenizers/json_field.h"

namespace mezzo::text {

/// Takes words, one after the other.
class WordSink {
 public:
  virtual ~WordSink() = default;

  /// @param word        valid UTF-8, not empty; read before this returns.
  /// @param from_first  how many bytes, from its start on, come from the first character of the text to encode; may be
  ///     more than it has.
  virtual void add(std::string_view word, size_t from_first) = 0;

  /// True to stop early.
  virtual bool full() const { return false; }
};

/// Joins the characters of BertNormalizer::run() to words. Call end_word() at the end of the text.
class BertWords {
 public:
  explicit BertWords(WordSink& out) : out_(out) {}

  void append(char c) { word_.push_back(c); }
  void append(std::string_view bytes) { word_.append(bytes); }
  void append(char32_t c) { append_utf8(word_, c); }
  void space(char32_t) { end_word(); }
  void isolate(char32_t c) {
    end_word();
    append(c);
    end_word();
  }
  bool full() const { return out_.full(); }
  void end_word() {
    if (!word_.empty()) out_.add(word_, 0);
    word_.clear();
  }

 private:
  WordSink& out_;
  std::string word_;
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void split(std::string_view text, size_t from_first, WordSink& out) const = 0;
};

/// Pre-tokenizers, each of which splits the pieces of the previous one.
class PreTokenizerSequence {
 public:
  PreTokenizerSequence() = default;

  /// @throws c10::ValueError  naming file and key of an unknown value.
  explicit PreTokenizerSequence(const JsonField& field);

  /// For a model that reads bytes: leaves the bytes of the words as they are, if the last step would write each as a
  /// character (ByteLevel). False if the last step is another.
  bool leave_bytes();

  void split(std::string_view text, size_t from_first, WordSink& out) const { split_from(0, text, from_first, out); }

 private:
  void add(const JsonField& field);
  void split_from(size_t step, std::string_view text, size_t from_first, WordSink& out) const;

  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

}  // namespace mezzo::text
