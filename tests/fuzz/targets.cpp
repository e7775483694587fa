#include "fuzz/targets.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>

#include "mezzo/text/checkpoint/checkpoint.h"
#include "mezzo/text/data/dataset.h"
#include "mezzo/text/inference/int8_check.h"
#include "mezzo/text/io/safetensors.h"
#include "mezzo/text/models/model_config.h"
#include "mezzo/text/report/comparison.h"
#include "mezzo/text/report/run_records.h"
#include "mezzo/text/tokenizers/tokenizer.h"
#include "mezzo/text/train/op_policy_file.h"
#include "mezzo/text/train/recorded_settings.h"
#include "text/checkpoint/checkpoint_format.h"
#include "text/io/content_hash.h"
#include "text/serve/predict_request.h"
#include "text/train/resuming.h"

namespace mezzo::fuzz {
namespace {

namespace fs = std::filesystem;
using text::LabelKind;

void write(const fs::path& file, std::string_view bytes) {
  const int descriptor = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const bool is_written =
      descriptor >= 0 && ::write(descriptor, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
  if (descriptor >= 0) ::close(descriptor);
  if (!is_written) throw std::runtime_error(file.string() + ": cannot be written");
}

/// Reads every byte, so that a sanitizer sees bytes outside the file.
void look_at(const at::Tensor& tensor) {
  const auto* bytes = static_cast<const volatile uint8_t*>(tensor.const_data_ptr());
  uint8_t sum = 0;
  for (size_t i = 0; i < tensor.nbytes(); ++i) sum ^= bytes[i];
  static_cast<void>(sum);
}

void read_safetensors(const fs::path& folder, std::string_view) {
  using Reader = text::SafetensorsReader;
  for (const auto access : {Reader::Access::kMapped, Reader::Access::kRead}) {
    const Reader file(folder / "model.safetensors", access);
    for (const std::string& name : file.names()) {
      try {
        look_at(file.tensor(name));
      } catch (const c10::ValueError&) {  // torch cannot hold it
      }
      file.release(name);
    }
  }
}

void read_tokenizer(const fs::path& folder, std::string_view) {
  const auto tokenizer = text::Tokenizer::from_pretrained(folder);
  for (const char* sample :
       {"", "Hello, world! 今天天气很好 \xF0\x9F\x98\x80 e\xCC\x81 \xFF", "  [CLS] <s> \xE2\x96\x81 a\n"}) {
    tokenizer->encode(sample, 16);
    tokenizer->encode(sample, "and another", 16);
    tokenizer->split_words(sample);
  }
}

void read_index(const fs::path& folder, std::string_view) { text::shards_of(folder / "model.safetensors.index.json"); }

template <const char* class_name>
void write_class(const fs::path& folder) {
  write(folder / "tokenizer_config.json", std::string(R"({"tokenizer_class": ")") + class_name + "\"}");
}

constexpr char kAny[] = "PreTrainedTokenizerFast", kRoberta[] = "RobertaTokenizer", kXlmR[] = "XLMRobertaTokenizer",
               kDeberta[] = "DebertaV2Tokenizer";

void write_vocab(const fs::path& folder) {
  write(folder / "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n##lo\n,\na\n");
}

void write_merges(const fs::path& folder) {
  write_class<kRoberta>(folder);
  write(folder / "merges.txt", "#version: 0.2\nh e\nhe l\n");
}

void write_vocab_json(const fs::path& folder) {
  write_class<kRoberta>(folder);
  write(folder / "vocab.json",
        R"({"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4, "h": 5, "e": 6, "he": 7, "l": 8, "hel": 9})");
}

void read_vocab(const fs::path& folder, std::string_view) {
  text::Tokenizer::from_vocab(folder / "vocab.txt")->encode("Hello, world 今天", 16);
}

template <const char* name, LabelKind kind, bool with_others = false>
void read_rows_as(const fs::path& folder, std::string_view) {
  text::load_rows(folder / name, text::LoadRowsOptions().label_kind(kind).other_columns(with_others));
}

/// As the tasks read them.
template <const char* name>
constexpr std::array<Read, 5> read_rows = {
    read_rows_as<name, LabelKind::kClass>, read_rows_as<name, LabelKind::kNone, true>,
    read_rows_as<name, LabelKind::kSeveral>, read_rows_as<name, LabelKind::kNumber>,
    read_rows_as<name, LabelKind::kWords>};

constexpr char kGb18030[] = "GB18030", kUtf16[] = "UTF-16", kShiftJis[] = "SHIFT_JIS";

template <const char* encoding>
void read_encoded(const fs::path& folder, std::string_view) {
  text::load_rows(
      folder / "rows.csv",
      text::LoadRowsOptions().label_kind(LabelKind::kNone).columns({.encoding = encoding, .no_header = true}));
}

constexpr char kJson[] = "rows.json", kJsonl[] = "rows.jsonl", kCsv[] = "rows.csv", kTsv[] = "rows.tsv",
               kTxt[] = "rows.txt", kConll[] = "rows.conll", kGzip[] = "rows.jsonl.gz", kZstd[] = "rows.csv.zst",
               kParquet[] = "rows.parquet";

void read_config(const fs::path& folder, std::string_view) {
  text::ModelConfig::from_file(folder / "config.json")->save(folder / "saved.json");
}

void read_manifest(const fs::path& folder, std::string_view) { text::load_checkpoint(folder); }

void write_tensors(const fs::path& folder) {
  for (const char* name : {text::checkpoint_format::kWeights, text::checkpoint_format::kOptimizer}) {
    write(folder / name, std::string_view("\2\0\0\0\0\0\0\0{}", 10));  // none
  }
}

void write_state(const fs::path& folder) {
  write_tensors(folder);
  write(folder / text::checkpoint_format::kState,
        R"({"run":"1","step":1,"steps_taken":1,"samples":1,"tokens":1,"seconds":1,"step_seconds":1,)"
        R"("last_eval_step":0,"best":null,"scaler":{},"schedule":{},"identity":{"flags":{},"model":{},"data":{}}})");
}

/// With a manifest that calls it whole, as a hand might have made it.
void read_state(const fs::path& folder, std::string_view) {
  namespace format = text::checkpoint_format;
  format::Manifest manifest;
  for (const char* name : {format::kWeights, format::kOptimizer, format::kState}) {
    const fs::path file = folder / name;
    manifest.files[name] = {static_cast<int64_t>(fs::file_size(file)), text::hash_of_file(file)};
  }
  write(folder / format::kManifest, format::manifest_text(manifest));
  text::load_checkpoint(folder);
}

void write_metrics(const fs::path& folder) {
  write(folder / "metrics.jsonl",
        R"({"event":"end","steps":1,"minutes":1,"samples_per_second":1,"tokens_per_second":1,)"
        R"("peak_memory_bytes":1,"best_step":1})");
}

void read_settings(const fs::path& folder, std::string_view) { text::recorded_settings(folder / "run.json"); }

void read_identity(const fs::path& folder, std::string_view) {
  text::recorded_flags(folder / "run.json");
  text::differences_from(folder / "run.json", {}, {});
}

void read_compared(const fs::path& folder, std::string_view) { text::read_run(folder); }

void read_metrics(const fs::path& folder, std::string_view) { text::read_run_records(folder / "metrics.jsonl"); }

void read_op_policy(const fs::path& folder, std::string_view) { text::load_op_policy(folder / "policy.toml"); }

void read_int8(const fs::path& folder, std::string_view) { text::int8_warning(folder); }

void write_quantized(const fs::path& folder) {
  write(folder / "config.json", "{}");
  write(folder / "model.safetensors", "");
}

void read_body(const fs::path&, std::string_view bytes) { text::parse_predict_request(bytes); }

constexpr Target kTargets[] = {
    {"safetensors", "model.safetensors", {read_safetensors}},
    {"safetensors_index", "model.safetensors.index.json", {read_index}},
    {"tokenizer_json", "tokenizer.json", {read_tokenizer}, write_class<kAny>},
    {"tokenizer_json_bert", "tokenizer.json", {read_tokenizer}},
    {"tokenizer_json_xlm_roberta", "tokenizer.json", {read_tokenizer}, write_class<kXlmR>},
    {"tokenizer_config", "tokenizer_config.json", {read_tokenizer}, write_vocab},
    {"special_tokens_map", "special_tokens_map.json", {read_tokenizer}, write_vocab},
    {"added_tokens", "added_tokens.json", {read_tokenizer}, write_vocab},
    {"vocab_txt", "vocab.txt", {read_vocab}},
    {"vocab_json", "vocab.json", {read_tokenizer}, write_merges},
    {"merges_txt", "merges.txt", {read_tokenizer}, write_vocab_json},
    {"sentencepiece_unigram", "sentencepiece.bpe.model", {read_tokenizer}, write_class<kXlmR>},
    {"sentencepiece_deberta", "spm.model", {read_tokenizer}, write_class<kDeberta>},
    {"json", kJson, read_rows<kJson>},
    {"jsonl", kJsonl, read_rows<kJsonl>},
    {"csv", kCsv, read_rows<kCsv>},
    {"csv_encoded", kCsv, {read_encoded<kGb18030>, read_encoded<kUtf16>, read_encoded<kShiftJis>}},
    {"tsv", kTsv, read_rows<kTsv>},
    {"txt", kTxt, read_rows<kTxt>},
    {"conll", kConll, read_rows<kConll>},
    {"gzip", kGzip, read_rows<kGzip>},
    {"zstd", kZstd, read_rows<kZstd>},
    {"parquet", kParquet, read_rows<kParquet>},
    {"config", "config.json", {read_config}},
    {"manifest", "manifest.json", {read_manifest}, write_state},
    {"state", "state.json", {read_state}, write_tensors},
    {"run_json", "run.json", {read_settings, read_identity, read_compared}, write_metrics},
    {"metrics", "metrics.jsonl", {read_metrics}},
    {"op_policy", "policy.toml", {read_op_policy}},
    {"int8", "int8.json", {read_int8}, write_quantized},
    {"predict_body", "body.json", {read_body}},
};

}  // namespace

std::span<const Target> targets() { return kTargets; }

const Target& find_target(std::string_view name) {
  const auto found = std::ranges::find(kTargets, name, &Target::name);
  if (found != std::end(kTargets)) return *found;
  std::string known;
  for (const Target& target : kTargets) known += " " + std::string(target.name);
  throw std::invalid_argument("no target \"" + std::string(name) + "\"; there are:" + known);
}

Folder::Folder(const Target& target) : target_(target) {
  std::string name = fs::is_directory("/dev/shm") ? "/dev/shm/mezzo-fuzz-XXXXXX" : "/tmp/mezzo-fuzz-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error(name + ": cannot be made");
  path_ = name;
  if (target.prepare != nullptr) target.prepare(path_);
}

Folder::~Folder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::span<const Read> Folder::ways() const {
  return std::span(target_.reads).first(std::ranges::find(target_.reads, nullptr) - target_.reads.begin());
}

std::string Folder::read(std::string_view bytes) const {
  write(path_ / target_.file, bytes);
  std::string first;
  bool is_right = false;
  for (const Read& way : ways()) {
    const std::string said = read_as(way, bytes);
    if (&way == ways().data()) first = said;
    is_right = is_right || said.empty();
  }
  return is_right ? "" : first;
}

std::string Folder::read_once(std::string_view bytes) const {
  write(path_ / target_.file, bytes);
  return read_as(ways()[bytes.size() % ways().size()], bytes);
}

std::string Folder::read_as(Read way, std::string_view bytes) const {
  try {
    way(path_, bytes);
    return "";
  } catch (const c10::Error& error) {
    const std::string said = error.what_without_backtrace();
    if (said.empty() || said.find('\n') != said.npos) throw std::logic_error("not one line: " + said);
    return said;
  }
}

}  // namespace mezzo::fuzz
