#pragma once

#include "text/data/row_collector.h"
#include "text/io/text_input.h"

/// The formats that load_rows() reads; what each is says its declaration in dataset.h. Each reads rows until the file
/// ends or the collector is full.
namespace mezzo::text {

void read_json(TextInput& input, RowCollector& rows);
void read_jsonl(TextInput& input, RowCollector& rows);
/// One row, which stands in line `line`.
void read_json_row(const std::string& text, int64_t line, RowCollector& rows);
void read_csv(TextInput& input, char delimiter, RowCollector& rows);
void read_txt(TextInput& input, RowCollector& rows);
void read_conll(TextInput& input, RowCollector& rows);

}  // namespace mezzo::text
