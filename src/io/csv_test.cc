#include "io/csv.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace millrace {
namespace {

using Fields = std::vector<std::string>;

std::vector<Fields> read(std::string_view text, char separator = ',') {
  CsvRecords records(text, separator, {"a.csv"});
  std::vector<Fields> all;
  for (Fields fields; records.next(fields);) all.push_back(fields);
  return all;
}

TEST(CsvTest, FieldsQuotedAndPlain) {
  EXPECT_EQ(read("a,b\n1,2\n"), (std::vector<Fields>{{"a", "b"}, {"1", "2"}}));
  EXPECT_EQ(read("a,b\r\n1,2"), (std::vector<Fields>{{"a", "b"}, {"1", "2"}}));
  EXPECT_EQ(read("\"a,\"\"x\"\"\nb\",c\n"), (std::vector<Fields>{{"a,\"x\"\nb", "c"}}));
  EXPECT_EQ(read(",\n"), (std::vector<Fields>{{"", ""}}));
  EXPECT_EQ(read("\"\",\"\"\n\n\nx"), (std::vector<Fields>{{"", ""}, {"x"}}));
  EXPECT_EQ(read("a\tb \"c\"\n", '\t'), (std::vector<Fields>{{"a", "b \"c\""}}));
  EXPECT_EQ(read(""), (std::vector<Fields>{}));
}

TEST(CsvTest, TellsWhereItIs) {
  CsvRecords records("a,\"x\ny\"\nb,2\n", ',', {"a.csv", 10, 1, 100});
  Fields fields;
  ASSERT_TRUE(records.next(fields));
  EXPECT_EQ(records.place().line, 10);
  EXPECT_EQ(records.place().byte, 100);
  ASSERT_TRUE(records.next(fields));
  EXPECT_EQ(records.place().line, 12);
  EXPECT_EQ(records.place().byte, 108);
}

TEST(CsvTest, TellsWhereFieldsBegin) {
  CsvRecords records("a,b\n\u00E9,\"x\n\"\"y\",,z\n", ',', {"a.csv", 10, 1, 100});
  Fields fields;
  ASSERT_TRUE(records.next(fields));
  ASSERT_TRUE(records.next(fields));
  ASSERT_EQ(fields.size(), 4u);
  auto place = [&](size_t field, std::string_view text, size_t at) {
    return records.place(field).inside(text, at);
  };
  EXPECT_EQ(place(0, fields[0], 0), "a.csv:11:1 (byte 104)");
  EXPECT_EQ(place(1, fields[1], 0), "a.csv:11:4 (byte 108)");
  EXPECT_EQ(place(1, fields[1], 3), "a.csv:12:3 (byte 112)") << "behind the doubled quote";
  EXPECT_EQ(place(2, fields[2], 0), "a.csv:12:6 (byte 115)");
  EXPECT_EQ(place(3, fields[3], 0), "a.csv:12:7 (byte 116)");
}

TEST(CsvTest, RefusesAndGoesOnBehind) {
  CsvRecords records("a,\"x\"y\nb,2\nc,\"open\nmore", ',', {"a.csv"});
  Fields fields;
  try {
    records.next(fields);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.fields().where, "a.csv:1 (byte 5)");
  }
  ASSERT_TRUE(records.next(fields));
  EXPECT_EQ(fields, (Fields{"b", "2"}));
  try {
    records.next(fields);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.fields().where, "a.csv:3 (byte 13)");
  }
  ASSERT_TRUE(records.next(fields));
  EXPECT_EQ(fields, (Fields{"more"}));
  EXPECT_FALSE(records.next(fields));
}

TEST(CsvTest, CutsOnlyWhereRecordsEnd) {
  const std::string text = "a,\"x\ny\"\"\n\"\nb,2\nc\"d\ne,\"open\n";
  EXPECT_EQ(whole_csv_records(text, ','), text.find("e,\"open"));
  EXPECT_EQ(whole_csv_records("\"a\nb", ','), 0u);
  // However a text is cut, its records stay the same.
  const std::vector<Fields> all = read(text.substr(0, whole_csv_records(text, ',')));
  for (size_t size = 1; size <= text.size(); ++size) {
    std::vector<Fields> got;
    std::string rest;
    for (size_t at = 0; at < text.size(); at += size) {
      rest += text.substr(at, size);
      const size_t whole = whole_csv_records(rest, ',');
      for (Fields& f : read(rest.substr(0, whole))) got.push_back(std::move(f));
      rest.erase(0, whole);
    }
    EXPECT_EQ(got, all) << size;
  }
}

}  // namespace
}  // namespace millrace
