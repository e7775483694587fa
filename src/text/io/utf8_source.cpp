#include "text/io/utf8_source.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <bitset>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "mezzo/text/io/nearest_name.h"
#include "text/io/utf8.h"

#ifdef MEZZO_HAS_UCHARDET
#include <uchardet/uchardet.h>
#endif

namespace mezzo::text {
namespace {

using namespace std::string_view_literals;

constexpr size_t kBlock = size_t{64} << 10, kSample = size_t{256} << 10;
constexpr size_t kLongestSequence = 8;  // of any encoding, shift sequences aside
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr size_t kMostInvalid = 1000;  // one byte in this number

/// Names of Python and of browsers that iconv lacks, or takes for a smaller set of characters.
std::string name_for_iconv(std::string_view name) {
  std::string upper(name);
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  std::string dashed = upper;
  std::ranges::replace(dashed, '_', '-');
  constexpr std::pair<std::string_view, const char*> kNames[] = {
      {"UTF8", "UTF-8"},         {"UTF-8-SIG", "UTF-8"}, {"UTF16", "UTF-16"},       {"UTF-16-LE", "UTF-16LE"},
      {"UTF-16-BE", "UTF-16BE"}, {"UTF32", "UTF-32"},    {"UTF-32-LE", "UTF-32LE"}, {"UTF-32-BE", "UTF-32BE"},
      {"GB2312", "GB18030"},     {"GBK", "GB18030"},     {"CP936", "GB18030"},      {"LATIN-1", "ISO-8859-1"},
      {"MAC-ROMAN", "MACINTOSH"}};
  const auto* known = std::ranges::find(kNames, dashed, [](const auto& pair) { return pair.first; });
  return known == std::end(kNames) ? upper : known->second;
}

constexpr size_t kFewBytes = 5;  // different ones, by which libuchardet can only guess

/// How many different bytes outside of ASCII there are.
size_t count_different(std::string_view text) {
  std::bitset<256> bytes;
  for (const char c : text) bytes.set(static_cast<unsigned char>(c));
  return (bytes >> 128).count();
}

/// The encoding that libuchardet takes `text` for; empty if it cannot tell. WINDOWS-1252 in place of an unlikely
/// encoding of a single accented letter or apostrophe.
std::string likely_encoding([[maybe_unused]] std::string_view text) {
  std::string name;
#ifdef MEZZO_HAS_UCHARDET
  uchardet_t detector = uchardet_new();
  uchardet_handle_data(detector, text.data(), text.size());
  uchardet_data_end(detector);
  name = uchardet_get_charset(detector);
  uchardet_delete(detector);
  const size_t different = count_different(text);
  const bool is_unlikely =
      different == 1 || (different < kFewBytes && (name.starts_with("MAC-") || name.starts_with("IBM")));
  const bool fits_1252 = text.find_first_of("\x81\x8D\x8F\x90\x9D") == std::string_view::npos;
  // As browsers do: ISO-8859-1 with more characters.
  if (name == "ISO-8859-1" || (is_unlikely && fits_1252)) name = "WINDOWS-1252";
  if (different == 0) name.clear();
#endif
  return name;
}

/// The byte order of UTF-16 that fits the zero bytes of a text without a mark. Empty if none fits, as for UTF-32 and
/// for UTF-8 with a few zero bytes.
std::string utf16_without_mark(std::string_view text) {
  const size_t zeros = std::ranges::count(text, '\0');
  if (8 * zeros < text.size() && find_invalid_utf8(text) + kLongestSequence > text.size()) return "";
  size_t little = 0, big = 0;
  // A zero byte is part of a Chinese character, too; white space and punctuation weigh more.
  const auto weight = [](char c) -> size_t { return "\t\n\r \",;"sv.find(c) != std::string_view::npos ? 16 : c > ' '; };
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    if (text[i] == '\0' && text[i + 1] == '\0') return "";
    if (text[i + 1] == '\0') little += weight(text[i]);
    if (text[i] == '\0') big += weight(text[i + 1]);
  }
  constexpr size_t kTimes = 8;
  return little > kTimes * big ? "UTF-16LE" : big > kTimes * little ? "UTF-16BE" : "";
}

/// Refuses files that are not text, by their first bytes.
void check_is_text(const std::string& file, std::string_view head) {
  constexpr std::pair<std::string_view, const char*> kFormats[] = {
      {"\xFD"
       "7zXZ\0"sv,
       "compressed by xz, which is not read. Decompress it, or compress it by gzip or zstd"},
      {"BZh"sv, "compressed by bzip2, which is not read. Decompress it, or compress it by gzip or zstd"},
      {"PK\x03\x04"sv,
       "a zip archive, as .xlsx files are. Save a spreadsheet as \"CSV UTF-8\", and take other files out of the "
       "archive"},
      {"\xD0\xCF\x11\xE0"sv, "a file of an old Excel or Word. Save a spreadsheet as \"CSV UTF-8\""},
      {"%PDF"sv, "a PDF. Write each text and its label into a row of a .csv file"},
      {"PAR1"sv, "Parquet. Name it .parquet"}};
  for (const auto& [begin, what] : kFormats) {
    TORCH_CHECK_VALUE(!head.starts_with(begin), file, ": the file is ", what, ".");
  }
  const bool is_gzip = head.starts_with("\x1F\x8B");
  TORCH_CHECK_VALUE(!is_gzip && !head.starts_with("\x28\xB5\x2F\xFD"), file, ": the file is compressed. Name it ", file,
                    is_gzip ? ".gz." : ".zst.");
}

}  // namespace

Utf8Source::Utf8Source(const std::filesystem::path& file, std::string_view encoding)
    : file_(file.string()), is_pipe_(!std::filesystem::is_regular_file(file)), source_(open_bytes(file)) {
  fill(kBlock);
  check_is_text(file_, rest());
  if (encoding != "auto") use(name_for_iconv(encoding));
  use_mark();
  TORCH_CHECK_VALUE(!rest().empty() || !at_end_, file_, ": the file is empty.");
  if (is_decided_ || rest().substr(0, 16).find('\0') == std::string_view::npos) return;
  const std::string utf16 = utf16_without_mark(rest());
  const bool may_be_utf8 = rest().substr(0, 4).find('\0') == std::string_view::npos;
  if (utf16.empty() && may_be_utf8) return;
  TORCH_CHECK_VALUE(!utf16.empty(), file_, ": the file is not text: it begins with zero bytes. If it is UTF-32, pass ",
                    "--encoding UTF-32.");
  use(utf16);
  how_ = "detected by its zero bytes";
}

/// Reads until that many bytes are there, or the file ends.
void Utf8Source::fill(size_t at_least) {
  raw_.erase(0, std::exchange(begin_, 0));
  while (!at_end_ && raw_.size() < at_least) {
    const size_t before = raw_.size();
    raw_.resize(before + kBlock);
    const size_t count = source_->read(std::span(raw_).subspan(before));
    raw_.resize(before + count);
    total_ += count;
    at_end_ = count == 0;
    if (is_pipe_) return;
  }
}

void Utf8Source::use(std::string_view encoding) {
  const iconv_t kUnknown = reinterpret_cast<iconv_t>(-1);
  encoding_ = encoding;
  is_decided_ = true;
  if (encoding_ == "UTF-8") return;
  iconv_t converter = ::iconv_open("UTF-8", encoding_.c_str());
  if (converter == kUnknown) {  // Python writes EUC_JP, iconv EUC-JP
    std::ranges::replace(encoding_, '_', '-');
    converter = ::iconv_open("UTF-8", encoding_.c_str());
  }
  if (converter == kUnknown) {
    static const std::vector<std::string> kCommon{"UTF-8",        "UTF-16",       "GB18030",   "BIG5",
                                                  "SHIFT_JIS",    "EUC-JP",       "EUC-KR",    "KOI8-R",
                                                  "WINDOWS-1252", "WINDOWS-1251", "ISO-8859-1"};
    const std::string meant = did_you_mean(encoding, kCommon);
    TORCH_CHECK_VALUE(false, file_, ": iconv does not know the encoding '", encoding, "'.",
                      meant.empty() ? " `iconv -l` lists all." : meant);
  }
  converter_.reset(converter);
  unit_ = encoding_.starts_with("UTF-16") ? 2 : encoding_.starts_with("UTF-32") ? 4 : 1;
}

/// Moves past a byte order mark, which chooses the encoding if none was given.
void Utf8Source::use_mark() {
  constexpr std::pair<std::string_view, const char*> kMarks[] = {{"\xEF\xBB\xBF"sv, "UTF-8"},
                                                                 {"\xFF\xFE\0\0"sv, "UTF-32LE"},
                                                                 {"\0\0\xFE\xFF"sv, "UTF-32BE"},
                                                                 {"\xFF\xFE"sv, "UTF-16LE"},
                                                                 {"\xFE\xFF"sv, "UTF-16BE"}};
  const auto* mark = std::ranges::find_if(kMarks, [&](const auto& pair) { return rest().starts_with(pair.first); });
  if (mark == std::end(kMarks) || (is_decided_ && encoding_ != mark->second)) return;
  take(mark->first.size());
  if (is_decided_) return;
  use(mark->second);
  if (converter_ != nullptr) how_ = "by its byte order mark";
}

/// Chooses the encoding by the bytes that come next. The first is not ASCII.
void Utf8Source::detect() {
  is_decided_ = true;
  if (!is_pipe_) fill(kSample);
  const std::string_view sample = rest();
  size_t valid = 0, invalid = 0;  // sequences
  for (std::string_view text = sample; !text.empty() && valid + invalid < kSample;) {
    const int length = utf8_sequence_length(text);
    const bool may_go_on = length < 0 && text.size() < kLongestSequence && !at_end_;
    valid += length > 1;
    invalid += length < 0 && !may_go_on;
    text.remove_prefix(std::abs(length));
  }
  std::string likely = invalid == 0 || valid > invalid ? "UTF-8" : likely_encoding(sample);
  // Of the sequences of a text in these encodings, less than a quarter is valid UTF-8. Thai has more.
  constexpr std::string_view kSingleByte[] = {"WINDOWS-", "ISO-8859-", "IBM", "MAC-"};
  const bool is_single_byte = likely != "ISO-8859-11" &&
                              std::ranges::any_of(kSingleByte, [&](auto begin) { return likely.starts_with(begin); });
  if (is_single_byte && valid >= 10 && 3 * valid > invalid) likely = "UTF-8";
  if (likely == "UTF-8") likely_ = likely;
  if (likely.empty() || likely == "UTF-8") return;
  use(likely);
  const size_t different = count_different(sample);
  how_ = fmt::format("{} from {} outside of ASCII", different < kFewBytes ? "a guess" : "detected",
                     different == 1 ? "1 byte" : fmt::format("{} different bytes", different));
}

/// Writes U+FFFD in place of `length` bytes.
void Utf8Source::replace(size_t length, std::span<char>& out) {
  length = std::min(length, rest().size());
  if (invalid_ == 0 && likely_.empty()) {
    std::string_view sample = rest().substr(0, kSample);
    sample.remove_prefix(std::ranges::find_if(sample, [](char c) { return (c & 0xC0) != 0x80; }) - sample.begin());
    likely_ = find_invalid_utf8(sample) + kLongestSequence > sample.size() ? "UTF-8" : likely_encoding(sample);
  }
  invalid_ += length;
  take(length);
  std::ranges::copy(kReplacement, out.begin());
  out = out.subspan(kReplacement.size());
}

/// Of UTF-8.
void Utf8Source::copy(std::span<char>& out) {
  while (out.size() >= kLongestSequence) {
    std::string_view text = rest().substr(0, out.size());
    const auto is_outside = [](char c) { return static_cast<unsigned char>(c) >= 0x80; };
    if (!is_decided_) text = text.substr(0, std::ranges::find_if(text, is_outside) - text.begin());
    const size_t valid = find_invalid_utf8(text);
    std::ranges::copy(text.substr(0, valid), out.begin());
    out = out.subspan(valid);
    take(valid);
    if (rest().empty() || (rest().size() < kLongestSequence && !at_end_)) return;
    if (!is_decided_ && is_outside(rest().front())) detect();
    if (converter_ != nullptr) return convert(out);
    const int length = utf8_sequence_length(rest());
    if (length < 0 && out.size() >= kReplacement.size()) replace(-length, out);
  }
}

/// Of other encodings.
void Utf8Source::convert(std::span<char>& out) {
  while (out.size() >= kLongestSequence && !rest().empty()) {
    char* in = const_cast<char*>(rest().data());  // which iconv only reads
    size_t in_left = rest().size(), out_left = out.size();
    char* to = out.data();
    const size_t result = ::iconv(converter_.get(), &in, &in_left, &to, &out_left);
    const int error = errno;
    take(rest().size() - in_left);
    out = out.last(out_left);
    if (result != static_cast<size_t>(-1)) {
      if (at_end_) ::iconv(converter_.get(), nullptr, nullptr, &to, &out_left);
      out = out.last(out_left);
      return;
    }
    if (error == E2BIG || (error == EINVAL && !at_end_)) return;
    if (out.size() < kReplacement.size()) return;
    replace(error == EINVAL ? rest().size() : unit_, out);
  }
}

size_t Utf8Source::read(std::span<char> bytes) {
  std::span<char> out = bytes;
  while (out.size() == bytes.size() && !(at_end_ && rest().empty())) {
    const size_t before = rest().size();
    converter_ == nullptr ? copy(out) : convert(out);
    if (out.size() == bytes.size() && rest().size() == before) fill(before + 1);
  }
  // At the end, and now and then before.
  if (at_end_ || total_ > (size_t{1} << 20)) check_invalid();
  return bytes.size() - out.size();
}

void Utf8Source::check_invalid() const {
  constexpr const char* kMixed =
      "The file is UTF-8 mixed with another encoding, or damaged. Save it as UTF-8, or pass --encoding NAME.";
  constexpr const char* kUnknown = "Save the file as UTF-8, or pass --encoding NAME, such as GB18030 or WINDOWS-1252.";
  TORCH_CHECK_VALUE(invalid_ * kMostInvalid <= total_, file_, ": ", invalid_, " of ", total_,
                    fmt::format(" bytes ({:.3g} %) are not valid ",
                                100.0 * static_cast<double>(invalid_) / static_cast<double>(total_)),
                    encoding_, ". ",
                    likely_.empty()        ? kUnknown
                    : likely_ == encoding_ ? kMixed
                                           : fmt::format("The file is likely {0}: pass --encoding {0}.", likely_));
}

std::vector<std::string> Utf8Source::notes() const {
  std::vector<std::string> notes;
  if (!how_.empty()) {
    notes.push_back(fmt::format("read as {} ({}); --encoding NAME changes it", encoding_, how_));
  }
  if (invalid_ > 0) {
    notes.push_back(fmt::format("{} that {} not valid {} became U+FFFD",
                                invalid_ == 1 ? "1 byte" : fmt::format("{} bytes", invalid_),
                                invalid_ == 1 ? "is" : "are", encoding_));
  }
  return notes;
}

}  // namespace mezzo::text
