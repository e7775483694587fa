#include "text/data/parquet_module.h"

#include <arrow/api.h>
#include <arrow/extension_type.h>
#include <arrow/io/file.h>
#include <arrow/util/float16.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>
#include <parquet/properties.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kRowsAtATime = 1024;

void check(const arrow::Status& status) {
  if (!status.ok()) {
    throw std::runtime_error(kOfArrow + status.message());
  }
}

template <class T>
T value_of(arrow::Result<T> result) {
  check(result.status());
  return std::move(result).ValueUnsafe();
}

/// Whole ones are written as such, as where pandas made floats of integers.
Json number(double value) {
  constexpr double kWhole = 1LL << 53;
  const bool is_whole = std::trunc(value) == value && std::fabs(value) < kWhole;
  return is_whole ? Json(static_cast<int64_t>(value)) : std::isfinite(value) ? Json(value) : Json();
}

Json to_json(const arrow::Array& array, int64_t i);

template <class List>
Json list_to_json(const arrow::Array& array, int64_t i) {
  const auto& list = static_cast<const List&>(array);
  Json json = Json::array();
  for (int64_t k = list.value_offset(i), end = k + list.value_length(i); k < end; ++k) {
    json.push_back(to_json(*list.values(), k));
  }
  return json;
}

Json struct_to_json(const arrow::StructArray& array, int64_t i) {
  Json json = Json::object();
  for (int field = 0; field < array.num_fields(); ++field) {
    json[array.struct_type()->field(field)->name()] = to_json(*array.field(field), i);
  }
  return json;
}

/// Whether values of a type are text, numbers or lists of such.
bool is_plain(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::DICTIONARY: return is_plain(*static_cast<const arrow::DictionaryType&>(type).value_type());
    case arrow::Type::EXTENSION: return is_plain(*static_cast<const arrow::ExtensionType&>(type).storage_type());
    case arrow::Type::LIST:
    case arrow::Type::LARGE_LIST:
    case arrow::Type::FIXED_SIZE_LIST: return is_plain(*type.field(0)->type());
    case arrow::Type::NA:
    case arrow::Type::BOOL: return true;
    default:
      return arrow::is_base_binary_like(type.id()) || arrow::is_binary_view_like(type.id()) ||
             arrow::is_numeric(type.id()) || arrow::is_decimal(type.id());
  }
}

/// What JSON has no type for (dates, maps …) as Arrow writes it.
Json to_json(const arrow::Array& array, int64_t i) {
  if (array.IsNull(i)) {
    return {};
  }
  switch (array.type_id()) {
    case arrow::Type::BOOL: return static_cast<const arrow::BooleanArray&>(array).Value(i);
    case arrow::Type::INT8: return static_cast<const arrow::Int8Array&>(array).Value(i);
    case arrow::Type::INT16: return static_cast<const arrow::Int16Array&>(array).Value(i);
    case arrow::Type::INT32: return static_cast<const arrow::Int32Array&>(array).Value(i);
    case arrow::Type::INT64: return static_cast<const arrow::Int64Array&>(array).Value(i);
    case arrow::Type::UINT8: return static_cast<const arrow::UInt8Array&>(array).Value(i);
    case arrow::Type::UINT16: return static_cast<const arrow::UInt16Array&>(array).Value(i);
    case arrow::Type::UINT32: return static_cast<const arrow::UInt32Array&>(array).Value(i);
    case arrow::Type::UINT64: return static_cast<const arrow::UInt64Array&>(array).Value(i);
    case arrow::Type::HALF_FLOAT:
      return number(
          arrow::util::Float16::FromBits(static_cast<const arrow::HalfFloatArray&>(array).Value(i)).ToDouble());
    case arrow::Type::FLOAT: return number(static_cast<const arrow::FloatArray&>(array).Value(i));
    case arrow::Type::DOUBLE: return number(static_cast<const arrow::DoubleArray&>(array).Value(i));
    case arrow::Type::STRING:
    case arrow::Type::BINARY: return std::string(static_cast<const arrow::BinaryArray&>(array).GetView(i));
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY: return std::string(static_cast<const arrow::LargeBinaryArray&>(array).GetView(i));
    case arrow::Type::STRING_VIEW:
    case arrow::Type::BINARY_VIEW: return std::string(static_cast<const arrow::BinaryViewArray&>(array).GetView(i));
    case arrow::Type::DICTIONARY: {
      const auto& encoded = static_cast<const arrow::DictionaryArray&>(array);
      return to_json(*encoded.dictionary(), encoded.GetValueIndex(i));
    }
    case arrow::Type::LIST: return list_to_json<arrow::ListArray>(array, i);
    case arrow::Type::LARGE_LIST: return list_to_json<arrow::LargeListArray>(array, i);
    case arrow::Type::FIXED_SIZE_LIST: return list_to_json<arrow::FixedSizeListArray>(array, i);
    case arrow::Type::EXTENSION: return to_json(*static_cast<const arrow::ExtensionArray&>(array).storage(), i);
    case arrow::Type::DECIMAL32:
    case arrow::Type::DECIMAL64:
    case arrow::Type::DECIMAL128:
    case arrow::Type::DECIMAL256: return Json::parse(value_of(array.GetScalar(i))->ToString());
    case arrow::Type::STRUCT: return struct_to_json(static_cast<const arrow::StructArray&>(array), i);
    default: return value_of(array.GetScalar(i))->ToString();
  }
}

constexpr auto kReplace = Json::error_handler_t::replace;

/// A column of the file, and where it is in what is read of it.
struct Column {
  std::string key;                   ///< its name in JSON
  int index;                         ///< -1 where nobody wants it
  bool must_be_text;                 ///< whether its strings must be UTF-8
  std::vector<std::string> classes;  ///< names of its integers; none where they are numbers
};

struct Reading {
  const std::vector<std::string_view>& wanted;
  bool wants_others;
  MezzoParquetRow on_row;
  void* context;
};

/// What Hugging Face's datasets say of a file's columns; null where nobody does. It may be nested as deep as it likes,
/// so nothing of it is copied or written. A map that is sorted finds the names of many columns.
using Features = nlohmann::json;
Features features_of(const arrow::Schema& file) {
  const auto metadata = file.metadata();
  const auto text = metadata == nullptr ? arrow::Result<std::string>("") : metadata->Get("huggingface");
  Features said = text.ok() ? Features::parse(*text, nullptr, /*allow_exceptions=*/false) : Features();
  const Features::json_pointer place("/info/features");
  return said.is_object() && said.contains(place) ? std::move(said.at(place)) : Features();
}

/// The names of a ClassLabel, or of a list of those.
std::vector<std::string> classes_of(const Features& features, const std::string& column) {
  const Features* feature = features.is_object() && features.contains(column) ? &features.at(column) : nullptr;
  while (feature != nullptr && feature->is_object() && feature->contains("feature")) {
    feature = &feature->at("feature");
  }
  std::vector<std::string> classes;
  if (feature != nullptr && feature->is_object() && feature->contains("_type") && feature->at("_type").is_string() &&
      feature->at("_type") == "ClassLabel" && feature->contains("names") && feature->at("names").is_array()) {
    for (const Features& name : feature->at("names")) {
      if (name.is_structured()) {
        return {};
      }
      classes.push_back(name.is_string() ? name.get<std::string>() : name.dump());
    }
  }
  return classes;
}

/// Puts names in the place of numbers; a class that has none, as -1 where labels are withheld, is null.
void name_classes(const std::vector<std::string>& classes, Json& value) {
  if (value.is_array()) {
    for (Json& element : value) {
      name_classes(classes, element);
    }
  } else if (value.is_number_integer()) {
    const auto number = value.get<int64_t>();
    value = number >= 0 && number < std::ssize(classes) ? Json(classes[static_cast<size_t>(number)]) : Json();
  }
}

/// Those of a file, of which `read` are read.
std::vector<Column> columns_of(const arrow::Schema& file, const arrow::Schema& read, const Reading& reading) {
  const Features features = features_of(file);
  std::vector<Column> columns;
  for (const auto& field : file.fields()) {
    const std::string& name = field->name();
    const std::string key = Json(name).dump(-1, ' ', false, kReplace);
    const bool is_wanted = std::ranges::find(reading.wanted, name) != reading.wanted.end();
    if (file.GetAllFieldIndices(name).size() > 1) {
      throw std::runtime_error("two columns are named " + key + "; rename one");
    }
    if (is_wanted && !is_plain(*field->type())) {
      throw std::runtime_error("column " + key + " is of type " + field->type()->ToString() +
                               ", which is no text, number or list of them; save it as one");
    }
    columns.push_back({key, read.GetFieldIndex(name), is_wanted, classes_of(features, name)});
  }
  return columns;
}

/// Row `i` of `batch` goes to its reader; it is number `row` of the file.
bool hand_on(const std::vector<Column>& columns,
             const arrow::RecordBatch& batch,
             int64_t i,
             int64_t row,
             const Reading& reading) {
  std::string line = "{";
  bool replaced = false;
  for (const auto& [key, index, must_be_text, classes] : columns) {
    line += (line.size() > 1 ? "," : "") + key + ":";
    if (index < 0) {
      line += "null";
      continue;
    }
    Json value = to_json(*batch.column(index), i);
    if (!classes.empty()) {
      name_classes(classes, value);
    }
    try {
      line += value.dump();
    } catch (const Json::type_error&) {  // bytes that are no UTF-8
      if (must_be_text) {
        throw std::runtime_error("row " + std::to_string(row) + ": column " + key + " holds bytes that are no UTF-8");
      }
      line += value.dump(-1, ' ', false, kReplace);
      replaced = true;
    }
  }
  line += "}";
  return reading.on_row(reading.context, line.data(), line.size(), replaced);
}

void read(const char* path, const Reading& reading) {
  const auto file = value_of(arrow::io::ReadableFile::Open(path));
  parquet::ArrowReaderProperties properties(/*use_threads=*/false);
  properties.set_batch_size(kRowsAtATime);
  parquet::arrow::FileReaderBuilder builder;
  parquet::ReaderProperties reading_pages;
  reading_pages.set_page_checksum_verification(true);
  check(builder.Open(file, reading_pages));
  builder.properties(properties);
  const auto reader = value_of(builder.Build());
  std::shared_ptr<arrow::Schema> schema;
  check(reader->GetSchema(&schema));
  const auto& leaves = *reader->parquet_reader()->metadata()->schema();
  std::vector<int> read_leaves, groups(static_cast<size_t>(reader->num_row_groups()));
  for (int i = 0; i < leaves.num_columns(); ++i) {
    const std::string name = leaves.Column(i)->path()->ToDotVector().front();
    if (reading.wants_others || std::ranges::find(reading.wanted, name) != reading.wanted.end()) {
      read_leaves.push_back(i);
    }
  }
  std::iota(groups.begin(), groups.end(), 0);
  int64_t row = 0;
  const auto batches = value_of(reader->GetRecordBatchReader(groups, read_leaves));
  const auto columns = columns_of(*schema, *batches->schema(), reading);
  for (auto batch = value_of(batches->Next()); batch != nullptr; batch = value_of(batches->Next())) {
    for (int64_t i = 0; i < batch->num_rows(); ++i) {
      if (!hand_on(columns, *batch, i, ++row, reading)) {
        return;
      }
    }
  }
}

}  // namespace

const char* MEZZO_READ_PARQUET(const char* path,
                               const char* const* wanted,
                               std::size_t num_wanted,
                               bool wants_others,
                               MezzoParquetRow on_row,
                               void* context) {
  thread_local std::string message;
  try {
    const std::vector<std::string_view> names(wanted, wanted + num_wanted);
    read(path, {names, wants_others, on_row, context});
    return nullptr;
  } catch (const parquet::ParquetException& error) {
    message = std::string(kOfArrow) + error.what();
  } catch (const std::exception& error) {
    message = error.what();
  }
  message.resize(message.find_last_not_of(". \n") + 1);
  return message.c_str();
}
