// SPDX-License-Identifier: Apache-2.0
// Fields of a JSON object, with messages that name the field, its value and its limits.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cistern/status.h"

namespace cistern::planner {

// Reads one object. What is wrong first is kept in status(), and every later call gives zero or nothing, so
// that a reader asks for all that it needs and looks at the status once. A field that is null counts as
// missing.
class Fields final {
 public:
  // `where` begins each message: "model Llama-3-8B". The object outlives this.
  Fields(const boost::json::object& object, std::string where);

  bool Has(std::string_view field) const;
  double Number(std::string_view field, double least, double most);
  std::optional<double> OptionalNumber(std::string_view field, double least, double most);
  // A whole number from `least` to 2^21, more than any shape of a model has.
  std::uint64_t Count(std::string_view field, std::uint64_t least = 1);
  std::uint64_t Count(std::string_view field, std::uint64_t least, std::uint64_t by_default);
  // The first of several names that is there; a message names the first.
  std::uint64_t CountOf(std::initializer_list<std::string_view> names);
  std::string String(std::string_view field);
  std::string String(std::string_view field, std::string_view by_default);
  bool Flag(std::string_view field, bool by_default);
  const boost::json::array* Array(std::string_view field);  // null when missing
  const boost::json::object* Object(std::string_view field);

  // "WHERE: FIELD WHY", unless something was wrong before.
  void Fail(std::string_view field, std::string_view why);
  const Status& status() const { return status_; }
  const std::string& where() const { return where_; }

 private:
  const boost::json::value* Find(std::string_view field) const;
  const boost::json::value* Need(std::string_view field);
  double NumberOf(std::string_view field, const boost::json::value& value, double least, double most);

  const boost::json::object& object_;
  std::string where_;
  Status status_;
};

// A whole text as JSON, of which an object is expected; `where` begins the message.
Result<boost::json::object> ParseObject(std::string_view text, std::string_view where);

}  // namespace cistern::planner
