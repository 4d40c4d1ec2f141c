// SPDX-License-Identifier: Apache-2.0
#include "spec.h"

#include <nanobind/stl/string.h>

#include <string>
#include <string_view>

#include "base/format.h"

namespace cistern::python {
namespace {

namespace nb = nanobind;

template <class T>
T ValueOf(nb::handle value, std::string_view name, const char* wanted) {
  T out;
  if (!nb::try_cast<T>(value, out))
    Throw(Code::kInvalid, Text(name, " is ", nb::repr(value).c_str(), ", ", wanted, " is needed"));
  return out;
}

GroupSpec GroupFrom(nb::handle group, std::size_t at) {
  const std::string name = Text("groups[", at, "]");
  GroupSpec spec;
  spec.name = ValueOf<std::string>(group.attr("name"), name + ".name", "a text");
  const std::string reach =
      ValueOf<std::string>(group.attr("reach"), name + ".reach", "\"full\" or \"window\"");
  if (reach != "full" && reach != "window")
    Throw(Code::kInvalid, Text(name, ".reach is \"", reach, "\", \"full\" or \"window\" is needed"));
  spec.reach = reach == "window" ? Reach::kWindow : Reach::kFull;
  spec.window_tokens = ValueOf<std::uint32_t>(group.attr("window_tokens"), name + ".window_tokens",
                                              "a whole number of 32 bits");
  for (nb::handle bytes : group.attr("part_bytes"))
    spec.part_bytes.push_back(ValueOf<std::uint64_t>(bytes, name + ".part_bytes", "a list of whole numbers"));
  return spec;
}

}  // namespace

void SetHints(nb::handle hints, MatchOptions& out) {
  const auto outlook = ValueOf<std::string>(hints.attr("outlook"), "outlook", "a text");
  out.hints.outlook = PolicyFrom("outlook", ParseOutlook(outlook));
  const auto importance = ValueOf<std::string>(hints.attr("importance"), "importance", "a text");
  out.hints.importance = PolicyFrom("importance", ParseImportance(importance));
  out.hints.next_turn_ms =
      ValueOf<std::uint32_t>(hints.attr("next_turn_ms"), "next_turn_ms", "a whole number of 32 bits");
  out.partial = ValueOf<bool>(hints.attr("partial"), "partial", "a bool");
}

NamespaceSpec SpecFrom(nb::handle spec) {
  NamespaceSpec out;
  out.name = ValueOf<std::string>(spec.attr("name"), "name", "a text");
  out.block_tokens =
      ValueOf<std::uint32_t>(spec.attr("block_tokens"), "block_tokens", "a whole number of 32 bits");
  out.trusted_keys = ValueOf<bool>(spec.attr("trusted_keys"), "trusted_keys", "a bool");
  const auto write = ValueOf<std::string>(spec.attr("flash_write"), "flash_write", "a text");
  if (!write.empty()) out.flash_write = PolicyFrom("flash_write", ParseWriteRule(write));
  const auto admit = ValueOf<std::string>(spec.attr("flash_admit"), "flash_admit", "a text");
  if (!admit.empty()) out.flash_admit = PolicyFrom("flash_admit", ParseAdmission(admit));
  const auto mesh = ValueOf<std::string>(spec.attr("mesh"), "mesh", "a text");
  if (!mesh.empty() && mesh != "on" && mesh != "off")
    Throw(Code::kInvalid, Text("mesh is \"", mesh, "\", \"on\" or \"off\" is needed"));
  if (!mesh.empty()) out.mesh = mesh == "on";
  const auto copies = ValueOf<std::uint32_t>(spec.attr("copies"), "copies", "a whole number of 32 bits");
  if (copies != 0) out.copies = copies;
  out.strict = ValueOf<bool>(spec.attr("strict"), "strict", "a bool");
  for (nb::handle field : spec.attr("fields").attr("items")()) {
    const std::string name = ValueOf<std::string>(field[0], "the name of a field", "a text");
    out.fields.emplace_back(name, ValueOf<std::string>(field[1], Text("field ", name), "a text"));
  }
  for (nb::handle label : spec.attr("labels").attr("items")()) {
    const std::string name = ValueOf<std::string>(label[0], "the name of a label", "a text");
    out.labels.emplace_back(name, ValueOf<std::string>(label[1], Text("label ", name), "a text"));
  }
  std::size_t at = 0;
  for (nb::handle group : spec.attr("groups")) out.groups.push_back(GroupFrom(group, at++));
  return out;
}

}  // namespace cistern::python
