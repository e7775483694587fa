#include "text/data/parquet_module.h"

#include <arrow/api.h>
#include <arrow/extension_type.h>
#include <arrow/io/file.h>
#include <arrow/util/float16.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>
#include <parquet/properties.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <deque>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

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

struct Column {
  std::string name = {};
  int index = -1;                         ///< in the batches; -1: not read
  bool is_wanted = false;                 ///< its values must be text, numbers, booleans or lists of them
  std::vector<std::string> classes = {};  ///< names of its integers; none: they are numbers
};

std::string quoted(const std::string& name) {
  return nlohmann::json(name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

template <class T>
const T& as(const arrow::Scalar& value) {
  return static_cast<const T&>(value);
}

/// The cells of a row, as MezzoParquetRow takes them.
struct Cells {
  std::vector<MezzoCell> cells = {};
  std::deque<std::string> texts = {};  ///< to which cells point

  void add(MezzoCellType type, std::string text) {
    const std::string& kept = texts.emplace_back(std::move(text));
    cells.push_back({type, kept.data(), kept.size()});
  }
  void add_null() { add(kMezzoNull, "null"); }
  /// Whole floats are integers: pandas makes floats of a column of integers if some are missing.
  void add_float(double value) {
    constexpr double kWhole = 1LL << 53;
    const bool is_whole = std::trunc(value) == value && std::fabs(value) < kWhole;
    if (!std::isfinite(value)) return add_null();
    add(kMezzoNumber, is_whole ? std::to_string(static_cast<int64_t>(value)) : nlohmann::json(value).dump());
  }
  /// An integer without a name, such as -1 for a label that is withheld, is null.
  void add_class(const std::string& integer, const std::vector<std::string>& names) {
    size_t i = names.size();
    std::from_chars(integer.data(), integer.data() + integer.size(), i);
    i < names.size() ? add(kMezzoText, names[i]) : add_null();
  }
  void add(const arrow::Scalar& value, const Column& column);
};

void Cells::add(const arrow::Scalar& value, const Column& column) {
  const arrow::Type::type type = value.type->id();
  if (!value.is_valid) return add_null();
  if (type == arrow::Type::DICTIONARY) {
    return add(*value_of(as<arrow::DictionaryScalar>(value).GetEncodedValue()), column);
  }
  if (type == arrow::Type::EXTENSION) return add(*as<arrow::ExtensionScalar>(value).value, column);
  if (type == arrow::Type::HALF_FLOAT) {
    return add_float(arrow::util::Float16::FromBits(as<arrow::HalfFloatScalar>(value).value).ToDouble());
  }
  if (type == arrow::Type::FLOAT) return add_float(as<arrow::FloatScalar>(value).value);
  if (type == arrow::Type::DOUBLE) return add_float(as<arrow::DoubleScalar>(value).value);
  if (arrow::is_integer(type) && !column.classes.empty()) return add_class(value.ToString(), column.classes);
  if (arrow::is_integer(type) || arrow::is_decimal(type)) return add(kMezzoNumber, value.ToString());
  if (type == arrow::Type::BOOL) return add(kMezzoBoolean, value.ToString());
  if (arrow::is_base_binary_like(type) || arrow::is_binary_view_like(type)) {
    return add(kMezzoText, std::string(as<arrow::BaseBinaryScalar>(value).view()));
  }
  if (arrow::is_list_like(type) && type != arrow::Type::MAP) {
    const arrow::Array& elements = *as<arrow::BaseListScalar>(value).value;
    cells.push_back({kMezzoList, nullptr, static_cast<size_t>(elements.length())});
    for (int64_t i = 0; i < elements.length(); ++i) add(*value_of(elements.GetScalar(i)), column);
    return;
  }
  if (column.is_wanted) {
    throw std::runtime_error("column " + quoted(column.name) + " is of type " + value.type->ToString() +
                             ", expected texts, numbers or lists of them; save it in such a type");
  }
  if (type != arrow::Type::STRUCT) return add(kMezzoText, value.ToString());  // a date, for example
  const auto& fields = as<arrow::StructScalar>(value).value;
  cells.push_back({kMezzoObject, nullptr, fields.size()});
  for (size_t i = 0; i < fields.size(); ++i) {
    add(kMezzoText, value.type->field(static_cast<int>(i))->name());
    add(*fields[i], Column());
  }
}

struct Reading {
  const std::vector<std::string_view>& wanted;
  bool wants_others;
  MezzoParquetRow on_row;
  void* context;
};

/// The features of a dataset that Hugging Face's library saved; null for other files. Values may be nested without
/// limit: copying or writing one would overflow the stack.
using Features = nlohmann::json;
Features features_of(const arrow::Schema& file) {
  const std::string text = file.metadata() == nullptr ? "" : file.metadata()->Get("huggingface").ValueOr("");
  Features said = Features::parse(text, nullptr, /*allow_exceptions=*/false);
  const Features::json_pointer place("/info/features");
  return said.is_object() && said.contains(place) ? std::move(said.at(place)) : Features();
}

/// The names of a ClassLabel, or of a list of ClassLabels; none for other features.
std::vector<std::string> classes_of(const Features& features, const std::string& column) {
  try {
    const Features* feature = &features.at(column);
    while (feature->contains("feature")) feature = &feature->at("feature");
    if (feature->at("_type") == "ClassLabel") return feature->at("names").get<std::vector<std::string>>();
  } catch (const Features::exception&) {  // not there, or of another type
  }
  return {};
}

/// All columns of the file.
/// @param read  the columns of the batches
std::vector<Column> columns_of(const arrow::Schema& file, const arrow::Schema& read, const Reading& reading) {
  const Features features = features_of(file);
  std::vector<Column> columns;
  for (const auto& field : file.fields()) {
    const std::string& name = field->name();
    const bool is_wanted = std::ranges::find(reading.wanted, name) != reading.wanted.end();
    if (file.GetAllFieldIndices(name).size() > 1) {
      throw std::runtime_error("two columns are named " + quoted(name) + "; rename one");
    }
    columns.push_back({name, read.GetFieldIndex(name), is_wanted, classes_of(features, name)});
  }
  return columns;
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
  const auto batches = value_of(reader->GetRecordBatchReader(groups, read_leaves));
  const auto columns = columns_of(*schema, *batches->schema(), reading);
  for (auto batch = value_of(batches->Next()); batch != nullptr; batch = value_of(batches->Next())) {
    for (int64_t i = 0; i < batch->num_rows(); ++i) {
      Cells row;
      for (const Column& column : columns) {
        row.add(kMezzoText, column.name);
        column.index < 0 ? row.add_null() : row.add(*value_of(batch->column(column.index)->GetScalar(i)), column);
      }
      if (!reading.on_row(reading.context, row.cells.data(), columns.size())) return;
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
