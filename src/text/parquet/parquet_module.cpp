#include "text/parquet/parquet_module.h"

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <arrow/util/float16.h>
#include <parquet/arrow/reader.h>
#include <parquet/properties.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kRowsAtATime = 1024;

void check(const arrow::Status& status) {
  if (!status.ok()) {
    throw std::runtime_error(status.message());
  }
}

template <class T>
T value_of(arrow::Result<T> result) {
  check(result.status());
  return std::move(result).ValueUnsafe();
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

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

/// What JSON has no type for (dates, decimals …) as Arrow writes it.
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
    case arrow::Type::STRUCT: return struct_to_json(static_cast<const arrow::StructArray&>(array), i);
    default: return value_of(array.GetScalar(i))->ToString();
  }
}

/// In quotes, whatever bytes it is of.
std::string printable(const std::string& name) {
  return Json(name).dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// One row. @throws std::runtime_error  naming the column that JSON cannot hold
std::string to_line(const std::vector<std::string>& names, const arrow::RecordBatch& batch, int64_t i, int64_t row) {
  std::string line = "{";
  for (const std::string& name : names) {
    const auto column = batch.GetColumnByName(name);
    try {
      line += line.size() > 1 ? "," : "";
      line += Json(name).dump() + ":" + (column == nullptr ? "null" : to_json(*column, i).dump());
    } catch (const Json::type_error&) {  // strings are not looked at before
      throw std::runtime_error("row " + std::to_string(row) + ": column " + printable(name) +
                               " holds bytes that are no UTF-8");
    }
  }
  return line + "}";
}

void read(const char* path, const std::vector<std::string_view>* wanted, MezzoParquetRow on_row, void* context) {
  const auto file = value_of(arrow::io::ReadableFile::Open(path));
  parquet::ArrowReaderProperties properties(/*use_threads=*/false);
  properties.set_batch_size(kRowsAtATime);
  parquet::arrow::FileReaderBuilder builder;
  check(builder.Open(file));
  builder.properties(properties);
  const auto reader = value_of(builder.Build());
  std::shared_ptr<arrow::Schema> schema;
  check(reader->GetSchema(&schema));
  const auto& columns = *reader->parquet_reader()->metadata()->schema();
  std::vector<int> leaves, groups(static_cast<size_t>(reader->num_row_groups()));
  for (int i = 0; i < columns.num_columns(); ++i) {
    const std::string name = columns.Column(i)->path()->ToDotVector().front();
    if (wanted == nullptr || std::ranges::find(*wanted, name) != wanted->end()) {
      leaves.push_back(i);
    }
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    groups[i] = static_cast<int>(i);
  }
  int64_t row = 0;
  const auto batches = value_of(reader->GetRecordBatchReader(groups, leaves));
  for (auto batch = value_of(batches->Next()); batch != nullptr; batch = value_of(batches->Next())) {
    for (int64_t i = 0; i < batch->num_rows(); ++i) {
      const std::string line = to_line(schema->field_names(), *batch, i, ++row);
      if (!on_row(context, line.data(), line.size())) {
        return;
      }
    }
  }
}

}  // namespace

const char* mezzo_read_parquet(
    const char* path, const char* const* wanted, std::size_t num_wanted, MezzoParquetRow on_row, void* context) {
  thread_local std::string message;
  try {
    if (wanted == nullptr) {
      read(path, nullptr, on_row, context);
    } else {
      const std::vector<std::string_view> names(wanted, wanted + num_wanted);
      read(path, &names, on_row, context);
    }
    return nullptr;
  } catch (const std::exception& error) {  // Parquet throws its own
    message = error.what();
    message.resize(message.find_last_not_of('.') + 1);
  }
  return message.c_str();
}
