#include "text_source.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <type_traits>
#include <utility>

#include "command_line.h"
#include "commands.h"
#include "mezzo/text/train/settings.h"

namespace mezzo::app {
namespace {

bool can_read(int fd, int timeout_ms) {
  pollfd file{fd, POLLIN, 0};
  return ::poll(&file, 1, timeout_ms) > 0;
}

}  // namespace

std::vector<std::string> LineReader::next(size_t most) {
  std::vector<std::string> lines;
  while (lines.size() < most) {
    const size_t end = buffer_.find('\n', searched_);
    if (end != std::string::npos) {
      lines.push_back(take(end));
      continue;
    }
    searched_ = buffer_.size();
    if (at_end_) {
      if (taken_ < buffer_.size()) {
        lines.push_back(take(buffer_.size()));
      }
      break;
    }
    if (!lines.empty() && !can_read(fd_, /*timeout_ms=*/0)) {
      break;
    }
    read_more();
  }
  return lines;
}

/// The line that ends before `end`.
std::string LineReader::take(size_t end) {
  std::string line = buffer_.substr(taken_, end - taken_);
  if (line.ends_with('\r')) {
    line.pop_back();
  }
  taken_ = searched_ = std::min(end + 1, buffer_.size());
  return line;
}

void LineReader::read_more() {
  constexpr size_t kBytes = size_t{1} << 16;
  buffer_.erase(0, taken_);
  taken_ = 0;
  const size_t before = searched_ = buffer_.size();
  buffer_.resize(before + kBytes);
  ssize_t count = ::read(fd_, buffer_.data() + before, kBytes);
  while (count < 0 && (errno == EINTR || errno == EAGAIN)) {
    can_read(fd_, /*timeout_ms=*/-1);
    count = ::read(fd_, buffer_.data() + before, kBytes);
  }
  TORCH_CHECK(count >= 0, "cannot read stdin: ", std::generic_category().message(errno));
  buffer_.resize(before + static_cast<size_t>(count));
  at_end_ = count == 0;
}

void check_is_not_dash(const std::vector<std::filesystem::path>& files) {
  if (std::ranges::find(files, "-") != files.end()) {
    throw UsageError("--data -: leave it out: stdin is read without --data; a file of that name is ./-");
  }
}

void warn_of_invalid_utf8(const std::string& where, int64_t count, size_t of) {
  if (count > 0) {
    std::fputs(fmt::format("{}: bytes that are not UTF-8 became U+FFFD in {} of {} rows\n", where, count, of).c_str(),
               stderr);
  }
}

void print_notes(const text::LabeledRows& rows) {
  for (const std::string& note : rows.notes) std::fputs((note + "\n").c_str(), stderr);
}

void add_columns(CLI::App& app, text::ColumnNames& columns, bool has_labels) {
  text::visit_columns(columns, [&](const text::Setting& setting, auto& field) {
    if (!has_labels && setting.name() == "label-column") return;
    const std::string flag = fmt::format("--{}", setting.name()), help(setting.help());
    CLI::Option* option = nullptr;
    if constexpr (std::is_same_v<decltype(field), bool&>) {
      option = app.add_flag(flag, field, help);
    } else {
      option = app.add_option(flag, field, help)->type_name(std::string(setting.metavar()))->default_str(field);
    }
    notes_of(option) = {.is_basic = setting.is_basic(), .is_of_data = true};
  });
}

void check_has_data(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (notes_of(option).is_of_data && option->count() > 0 && app.count("--data") == 0) {
      throw UsageError(fmt::format("{} needs --data", option->get_name()));
    }
  }
}

void use_lines(std::span<const std::string> lines,
               const text::WordSplitter& split_words,
               const std::function<void(const text::TextSpans&)>& use) {
  if (!split_words) return use({lines});
  std::vector<std::vector<std::string>> words;
  for (const std::string& line : lines) words.push_back(split_words(line));
  use({.texts = lines, .words = words});
}

void for_each_chunk(const std::vector<std::filesystem::path>& files,
                    const text::LoadRowsOptions& options,
                    bool warns,
                    const std::function<void(const text::TextSpans&)>& use) {
  constexpr size_t kLines = 1024, kRows = 16384;  // the latter in enough batches for many ranks
  if (!files.empty()) {
    const auto rows = text::load_rows(files, text::LoadRowsOptions(options).label_kind(text::LabelKind::kNone));
    if (warns) {
      print_notes(rows);
    }
    const text::TextSpans all{rows.texts, rows.text_pairs, rows.words, rows.others};
    for (size_t begin = 0; begin < all.texts.size(); begin += kRows) {
      use(all.subspan(begin, std::min(kRows, all.texts.size() - begin)));
    }
    return;
  }
  if (warns && ::isatty(STDIN_FILENO) == 1) {
    std::fputs("type texts, one a line, and Ctrl-D at the end\n", stderr);
  }
  LineReader lines(STDIN_FILENO);
  int64_t num_repaired = 0;
  size_t num_lines = 0;
  for (auto chunk = lines.next(kLines); !chunk.empty(); chunk = lines.next(kLines)) {
    for (std::string& line : chunk) num_repaired += text::repair_utf8(line);
    num_lines += chunk.size();
    use_lines(chunk, options.split_words(), use);
  }
  warn_of_invalid_utf8("stdin", num_repaired, num_lines);
}

}  // namespace mezzo::app
