#include "mezzo/text/report/run_records.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "mezzo/text/io/atomic_file.h"
#include "text/io/append_file.h"
#include "text/io/durable_files.h"
#include "text/io/json.h"

namespace mezzo::text {
namespace {

using Json = nlohmann::ordered_json;
using Metrics = decltype(EvalRecord::metrics);

constexpr size_t kMaxLineBytes = 1 << 20;  // a record has some 200; a file that is no metrics.jsonl stops here

/// The keys of each record, once for writing and reading both.
template <class Record, class Visit>
  requires std::is_same_v<std::remove_const_t<Record>, StepRecord>
void visit_fields(Record& record, Visit&& visit) {
  visit("step", record.step);
  visit("epoch", record.epoch);
  visit("loss", record.loss);
  visit("lr", record.lr);
  visit("grad_norm", record.grad_norm);
  visit("loss_scale", record.loss_scale);
  visit("skipped", record.skipped);
  visit("samples", record.samples);
  visit("tokens", record.tokens);
  visit("seconds", record.seconds);
  visit("parts", record.parts);
}

template <class Parts, class Visit>
  requires std::is_same_v<std::remove_const_t<Parts>, StepParts>
void visit_fields(Parts& parts, Visit&& visit) {
  visit("batch", parts.batch);
  visit("forward", parts.forward);
  visit("backward", parts.backward);
  visit("update", parts.update);
}

template <class Record, class Visit>
  requires std::is_same_v<std::remove_const_t<Record>, EvalRecord>
void visit_fields(Record& record, Visit&& visit) {
  visit("step", record.step);
  visit("split", record.split);
  visit("loss", record.loss);
  visit("metrics", record.metrics);
  visit("seconds", record.seconds);
  visit("never_predicted", record.never_predicted);
  visit("majority_baseline", record.majority_baseline);
}

template <class Record, class Visit>
  requires std::is_same_v<std::remove_const_t<Record>, WarningRecord>
void visit_fields(Record& record, Visit&& visit) {
  visit("step", record.step);
  visit("kind", record.kind);
  visit("text", record.text);
}

template <class Record, class Visit>
  requires std::is_same_v<std::remove_const_t<Record>, DiagnoseRecord>
void visit_fields(Record& record, Visit&& visit) {
  visit("step", record.step);
  visit("kind", record.kind);
  visit("loss_scale", record.loss_scale);
  visit("recommended_scale", record.recommended_scale);
  visit("text", record.text);
  visit("groups", record.groups);
}

template <class Record, class Visit>
  requires std::is_same_v<std::remove_const_t<Record>, CommunicationRecord>
void visit_fields(Record& record, Visit&& visit) {
  visit("step", record.step);
  visit("ranks", record.ranks);
  visit("steps", record.steps);
  visit("gradient_bytes", record.gradient_bytes);
  visit("weight_bytes", record.weight_bytes);
  visit("buckets", record.buckets);
  visit("seconds", record.seconds);
  visit("exposed_seconds", record.exposed_seconds);
}

template <class Record, class Visit>
  requires std::is_same_v<std::remove_const_t<Record>, EndRecord>
void visit_fields(Record& record, Visit&& visit) {
  visit("steps", record.steps);
  visit("minutes", record.minutes);
  visit("samples_per_second", record.samples_per_second);
  visit("tokens_per_second", record.tokens_per_second);
  visit("peak_memory_bytes", record.peak_memory_bytes);
  visit("best_step", record.best_step);
}

/// Counts from the first exponent that occurs to the last; none where all values are 0.
Json to_json_value(const GradientExponents& group) {
  const auto is_counted = [](int64_t count) { return count > 0; };
  const auto first = std::find_if(group.counts.begin(), group.counts.end(), is_counted);
  const auto last = std::find_if(group.counts.rbegin(), group.counts.rend(), is_counted).base();
  return {
      {"name", group.name},
      {"zeros", group.zeros},
      {"non_finite", group.non_finite},
      {"largest", group.largest},
      {"underflowed", group.underflowed},
      {"first_exponent", first == group.counts.end() ? 0 : GradientExponents::kLowest + (first - group.counts.begin())},
      {"counts", first == group.counts.end() ? std::vector<int64_t>() : std::vector<int64_t>(first, last)}};
}

Json to_json_value(const std::vector<GradientExponents>& groups) {
  Json array = Json::array();
  for (const GradientExponents& group : groups) {
    array.push_back(to_json_value(group));
  }
  return array;
}

Json to_json_value(const std::optional<int64_t>& value) { return value ? Json(*value) : Json(); }

template <class Value>
const Value& to_json_value(const Value& value) {
  return value;
}

template <class Value>
void add_member(Json& json, const char* key, const Value& value) {
  json[key] = to_json_value(value);
}

void add_member(Json& json, const char* key, const std::optional<StepParts>& parts) {
  if (parts) {
    visit_fields(*parts, [&](const char* part, double seconds) { json[key][part] = seconds; });
  }
}

void add_member(Json& json, const char* key, const std::vector<std::string>& names) {
  if (!names.empty()) json[key] = names;
}

void add_member(Json& json, const char* key, const std::optional<double>& value) {
  if (value) json[key] = *value;
}

/// Metrics are members of the record itself: {"loss":1.2,"accuracy":0.5,…}
void add_member(Json& json, const char*, const Metrics& metrics) {
  for (const auto& [name, value] : metrics) {
    json[name] = value;
  }
}

template <class Record>
Json to_json_object(const char* event, const Record& record) {
  Json json;
  json["event"] = event;
  visit_fields(record, [&](const char* key, const auto& value) { add_member(json, key, value); });
  return json;
}

std::string to_line(const Json& json) {
  return json.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

/// A line's place, for error messages.
struct Place {
  const std::filesystem::path& path;
  int64_t line;
};

std::ostream& operator<<(std::ostream& out, const Place& place) {
  return out << place.path.string() << ":" << place.line << ": ";
}

void read_value(const Place& place, const char* key, const Json& json, double& value) {
  TORCH_CHECK_VALUE(json.is_number() || json.is_null(), place, "\"", key, "\" must be a number or null, not a ",
                    json.type_name(), ".");
  value = json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
}

void read_value(const Place& place, const char* key, const Json& json, int64_t& value) {
  const bool fits = json.is_number_integer() &&
                    !(json.is_number_unsigned() && json.get<uint64_t>() > std::numeric_limits<int64_t>::max());
  TORCH_CHECK_VALUE(fits && json.get<int64_t>() >= 0, place, "\"", key, "\" must be an integer from 0.");
  value = json.get<int64_t>();
}

void read_value(const Place& place, const char* key, const Json& json, bool& value) {
  TORCH_CHECK_VALUE(json.is_boolean(), place, "\"", key, "\" must be true or false, not a ", json.type_name(), ".");
  value = json.get<bool>();
}

void read_value(const Place& place, const char* key, const Json& json, std::string& value) {
  TORCH_CHECK_VALUE(json.is_string(), place, "\"", key, "\" must be a string, not a ", json.type_name(), ".");
  value = json.get<std::string>();
}

template <class Value>
void read_member(const Place& place, const Json& object, const char* key, Value& value);

void read_value(const Place& place, const char* key, const Json& json, std::vector<int64_t>& values) {
  TORCH_CHECK_VALUE(json.is_array(), place, "\"", key, "\" must be an array, not a ", json.type_name(), ".");
  for (const Json& element : json) {
    read_value(place, key, element, values.emplace_back());
  }
}

void read_value(const Place& place, const char* key, const Json& json, std::vector<std::string>& names) {
  TORCH_CHECK_VALUE(json.is_array(), place, "\"", key, "\" must be an array, not a ", json.type_name(), ".");
  for (const Json& element : json) {
    read_value(place, key, element, names.emplace_back());
  }
}

void read_value(const Place& place, const char* key, const Json& json, std::vector<GradientExponents>& groups) {
  TORCH_CHECK_VALUE(json.is_array(), place, "\"", key, "\" must be an array, not a ", json.type_name(), ".");
  for (const Json& element : json) {
    TORCH_CHECK_VALUE(element.is_object(), place, "\"", key, "\" must hold objects, not a ", element.type_name(), ".");
    auto& group = groups.emplace_back();
    std::vector<int64_t> counts;
    read_member(place, element, "name", group.name);
    read_member(place, element, "zeros", group.zeros);
    read_member(place, element, "non_finite", group.non_finite);
    read_member(place, element, "largest", group.largest);
    read_member(place, element, "counts", counts);
    if (element.contains("underflowed")) {  // files of earlier versions lack it
      read_member(place, element, "underflowed", group.underflowed);
    }
    const auto first = element.find("first_exponent");
    const bool fits = first != element.end() && first->is_number_integer() && *first >= GradientExponents::kLowest &&
                      *first <= GradientExponents::kHighest &&
                      first->get<int64_t>() + static_cast<int64_t>(counts.size()) <= GradientExponents::kHighest + 1;
    TORCH_CHECK_VALUE(fits, place, "\"first_exponent\" must be an integer that keeps the \"counts\" between ",
                      GradientExponents::kLowest, " and ", GradientExponents::kHighest, ".");
    std::copy(counts.begin(), counts.end(),
              group.counts.begin() + (first->get<int64_t>() - GradientExponents::kLowest));
  }
}

template <class Value>
void read_member(const Place& place, const Json& object, const char* key, Value& value) {
  const auto found = object.find(key);
  TORCH_CHECK_VALUE(found != object.end(), place, "the record lacks \"", key, "\".");
  read_value(place, key, *found, value);
}

/// May be missing.
void read_member(const Place& place, const Json& object, const char* key, std::vector<std::string>& names) {
  if (const auto found = object.find(key); found != object.end()) read_value(place, key, *found, names);
}

/// May be missing, or null.
template <class Value>
  requires std::is_arithmetic_v<Value>
void read_member(const Place& place, const Json& object, const char* key, std::optional<Value>& value) {
  if (const auto found = object.find(key); found != object.end() && !found->is_null()) {
    read_value(place, key, *found, value.emplace());
  }
}

void read_member(const Place& place, const Json& object, const char* key, std::optional<StepParts>& parts) {
  if (const auto found = object.find(key); found != object.end()) {
    TORCH_CHECK_VALUE(found->is_object(), place, "\"", key, "\" must be an object.");
    visit_fields(parts.emplace(),
                 [&](const char* part, double& seconds) { read_member(place, *found, part, seconds); });
  }
}

/// Every number that is no other member of an evaluation.
void read_member(const Place& place, const Json& object, const char*, Metrics& metrics) {
  constexpr std::array<std::string_view, 7> kOthers = {
      "event", "step", "split", "final", "loss", "seconds", "majority_baseline"};
  for (const auto& [name, value] : object.items()) {
    if ((value.is_number() || value.is_null()) && std::ranges::find(kOthers, name) == kOthers.end()) {
      read_value(place, name.c_str(), value, metrics.emplace_back(name, 0).second);
    }
  }
}

template <class Record>
Record read_record(const Place& place, const Json& json) {
  Record record;
  visit_fields(record, [&](const char* key, auto& value) { read_member(place, json, key, value); });
  return record;
}

Json parse_line(const Place& place, const std::string& line) {
  TORCH_CHECK_VALUE(line.size() <= kMaxLineBytes, place, "a line of ", line.size(),
                    " bytes is no record of a run; is this a metrics.jsonl?");
  const Json json = parse_json(line, c10::str(place, "not a record of a run, one JSON object a line: "));
  const auto event = json.is_object() ? json.find("event") : json.end();
  TORCH_CHECK_VALUE(json.is_object() && event != json.end() && event->is_string(), place,
                    "not a record of a run: a JSON object with an \"event\" was expected.");
  return json;
}

/// Of a record that only a run at its end writes: no run is resumed at that step.
constexpr int64_t kAfterAllSteps = std::numeric_limits<int64_t>::max();

/// Adds the line to `records`. Returns the step it belongs to.
int64_t read_line(const Place& place, const std::string& line, RunRecords& records) {
  const Json json = parse_line(place, line);
  const std::string& event = json["event"].get_ref<const std::string&>();
  if (event == "step") {
    return records.steps.emplace_back(read_record<StepRecord>(place, json)).step;
  }
  if (event == "eval") {
    EvalRecord& record = records.evals.emplace_back(read_record<EvalRecord>(place, json));
    if (json.contains("final")) {
      read_member(place, json, "final", record.is_final);
    }
    return record.is_final ? kAfterAllSteps : record.step;
  }
  if (event == "diagnose") {
    return records.diagnoses.emplace_back(read_record<DiagnoseRecord>(place, json)).step;
  }
  if (event == "communication") {
    return records.communications.emplace_back(read_record<CommunicationRecord>(place, json)).step;
  }
  if (event == "warning") {
    const int64_t at = records.warnings.emplace_back(read_record<WarningRecord>(place, json)).step;
    return at == 0 ? kAfterAllSteps : at;
  }
  if (event == "end") {
    records.end = read_record<EndRecord>(place, json);
    return kAfterAllSteps;
  }
  ++records.unknown_events;
  int64_t step = 0;
  if (const auto found = json.find("step"); found != json.end()) {
    read_value(place, "step", *found, step);
  }
  return step;
}

bool is_record(const Place& place, const std::string& line) {
  try {
    parse_line(place, line);
    return true;
  } catch (const c10::ValueError&) {
    return false;
  }
}

/// Calls `visit(place, line)` for each line, but not for a last one that was cut off: when the
/// process died, or the disk was full.
template <class Visit>
void for_each_line(const std::filesystem::path& path, Visit&& visit) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file.is_open() && !std::filesystem::is_directory(path), "Cannot read ", path.string(),
              ", the records of a run.");
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    const Place place{path, number};
    const bool is_terminated = !file.eof();
    if (is_terminated || is_record(place, line)) {
      visit(place, line);
    }
  }
  TORCH_CHECK(file.eof(), "Reading ", path.string(), " failed.");
}

/// The lines up to `step`, of evaluations up to `last_eval_step`, as they stand in the file.
std::string lines_until(const std::filesystem::path& path, int64_t step, int64_t last_eval_step) {
  std::string kept;
  for_each_line(path, [&](const Place& place, const std::string& line) {
    RunRecords read;
    if (read_line(place, line, read) <= (read.evals.empty() ? step : last_eval_step)) {
      kept += line + '\n';
    }
  });
  return kept;
}

constexpr const char* kWho = "MetricsLog";

}  // namespace

std::string to_json(const StepRecord& record) { return to_line(to_json_object("step", record)); }
std::string to_json(const EvalRecord& record) {
  Json json = to_json_object("eval", record);
  if (record.is_final) {  // the others stay as they have always been
    json["final"] = true;
  }
  return to_line(json);
}
std::string to_json(const DiagnoseRecord& record) { return to_line(to_json_object("diagnose", record)); }
std::string to_json(const CommunicationRecord& record) { return to_line(to_json_object("communication", record)); }
std::string to_json(const WarningRecord& record) { return to_line(to_json_object("warning", record)); }
std::string to_json(const EndRecord& record) { return to_line(to_json_object("end", record)); }

RunRecords read_run_records(const std::filesystem::path& path) {
  RunRecords records;
  for_each_line(path, [&](const Place& place, const std::string& line) { read_line(place, line, records); });
  return records;
}

MetricsLog::MetricsLog(std::filesystem::path path, int flags)
    : path_(std::move(path)), fd_(open_for_writing(kWho, path_, flags)) {}

MetricsLog::MetricsLog(const std::filesystem::path& path) : MetricsLog(path, O_TRUNC | O_APPEND) {}

MetricsLog MetricsLog::resume(const std::filesystem::path& path, int64_t step, std::optional<int64_t> last_eval_step) {
  if (std::filesystem::exists(path)) {
    write_file_atomically(path, lines_until(path, step, last_eval_step.value_or(step)));
  }
  return MetricsLog(path, O_APPEND);
}

MetricsLog::MetricsLog(MetricsLog&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), unwritten_(std::move(other.unwritten_)) {}

MetricsLog& MetricsLog::operator=(MetricsLog&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(unwritten_, other.unwritten_);
  return *this;
}

MetricsLog::~MetricsLog() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

void MetricsLog::append_line(const std::string& line) {
  unwritten_ += line;
  unwritten_ += '\n';
  write();
}

void MetricsLog::write() {
  TORCH_CHECK(
      is_name_of(path_, fd_), path_.string(),
      ": was removed, moved or replaced while the run was writing it, so the run ends here; where checkpoints are "
      "left, --resume goes on from them");
  write_all(kWho, path_, fd_, unwritten_);
}

void MetricsLog::append(const StepRecord& record) { append_line(to_json(record)); }
void MetricsLog::append(const EvalRecord& record) { append_line(to_json(record)); }
void MetricsLog::append(const DiagnoseRecord& record) { append_line(to_json(record)); }
void MetricsLog::append(const CommunicationRecord& record) { append_line(to_json(record)); }
void MetricsLog::append(const WarningRecord& record) { append_line(to_json(record)); }
void MetricsLog::append(const EndRecord& record) { append_line(to_json(record)); }

void MetricsLog::flush() {
  write();
  const int error = flush_to_disk(fd_);
  TORCH_CHECK(error == 0, kWho, ": cannot flush ", path_.string(), " to the disk: ", std::strerror(error));
}

}  // namespace mezzo::text
