#pragma once

#include <iconv.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/io/byte_source.h"

namespace mezzo::text {

/// The text of a file in UTF-8, without a byte order mark, decompressed and converted while it is read. Bytes that the
/// encoding does not allow become U+FFFD.
///
/// The encoding is the named one. For "auto" it is known from the byte order mark, or from zero bytes at the beginning
/// (UTF-16). Else it is UTF-8 until the first byte outside of ASCII; libuchardet looks at up to 256 KiB from there,
/// unless they are valid UTF-8. Of a pipe it looks only at the bytes that have come.
class Utf8Source : public ByteSource {
 public:
  /// @param encoding  "auto", or a name that iconv or Python knows.
  /// @throws c10::ValueError  naming the file, if it cannot be read, is empty or no text, or if iconv does not know the
  ///   encoding.
  explicit Utf8Source(const std::filesystem::path& file, std::string_view encoding = "auto");

  /// @throws c10::ValueError  if more than one byte in 1,000 is invalid, with the encoding that is likely.
  size_t read(std::span<char> bytes) override;

  /// Sentences for the user: a detected encoding, and bytes that were replaced.
  std::vector<std::string> notes() const;

 private:
  struct CloseConverter {
    void operator()(iconv_t converter) const { ::iconv_close(converter); }
  };

  std::string_view rest() const { return std::string_view(raw_).substr(begin_); }
  void take(size_t count) { begin_ += count; }
  void fill(size_t at_least);
  void use(std::string_view encoding);
  void use_mark();
  void detect();
  void replace(size_t length, std::span<char>& out);
  void copy(std::span<char>& out);
  void convert(std::span<char>& out);
  void check_invalid() const;

  std::string file_;
  bool is_pipe_;
  std::unique_ptr<ByteSource> source_;
  std::string raw_;  // read and, from begin_, not yet converted
  size_t begin_ = 0;
  size_t total_ = 0;  // bytes read
  bool at_end_ = false;

  std::string encoding_ = "UTF-8";
  std::string how_;  // it was detected; empty if it was given or needs no word
  bool is_decided_ = false;
  std::unique_ptr<void, CloseConverter> converter_;  // none for UTF-8
  size_t unit_ = 1;                                  // bytes
  size_t invalid_ = 0;                               // bytes
  std::string likely_;                               // another encoding, if there are invalid bytes
};

}  // namespace mezzo::text
