#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "mezzo/text/data/dataset.h"
#include "mezzo/text/data/text_spans.h"

namespace mezzo::app {

/// Lines of an open file, as they come: a process that writes one line into a pipe and waits for an answer gets it.
class LineReader {
 public:
  explicit LineReader(int fd) : fd_(fd) {}

  /// Waits for a line, and returns it with those after it that need no waiting, at most `most`.
  /// Line ends, \n or \r\n, are left out; the last line may lack one. Empty at the end of the file.
  /// @throws c10::Error  if the file cannot be read.
  std::vector<std::string> next(size_t most);

 private:
  void read_more();
  std::string take(size_t end);

  int fd_;
  std::string buffer_;  // from taken_ on: bytes read and not returned
  size_t taken_ = 0;
  size_t searched_ = 0;  // no line ends before
  bool at_end_ = false;
};

/// Flags that name the columns of a data file.
void add_columns(CLI::App& app, text::ColumnNames& columns, bool has_labels);
/// @throws UsageError  for flags about data files, if --data is missing
void check_has_data(const CLI::App& app);

/// @throws UsageError  for "-", which means stdin elsewhere
void check_is_not_dash(const std::vector<std::filesystem::path>& files);

/// Prints to stderr how many rows had bytes that are not UTF-8, if any.
void warn_of_invalid_utf8(const std::string& where, int64_t count, size_t of);
/// Prints to stderr how the files were read: LabeledRows::notes.
void print_notes(const text::LabeledRows& rows);

/// Gives `lines` to `use`, with their words if there is a `split_words`.
void use_lines(std::span<const std::string> lines,
               const text::WordSplitter& split_words,
               const std::function<void(const text::TextSpans&)>& use);

/// Gives the rows of files, or the texts of stdin (one a line), to `use`, in chunks. So results for all of them need
/// not be held. Texts of stdin are given as soon as no more of them are waiting.
/// @param files  none for stdin
/// @param options  without labels.
/// @param warns  whether to report oddities of the files: one of the ranks does.
void for_each_chunk(const std::vector<std::filesystem::path>& files,
                    const text::LoadRowsOptions& options,
                    bool warns,
                    const std::function<void(const text::TextSpans&)>& use);

}  // namespace mezzo::app
