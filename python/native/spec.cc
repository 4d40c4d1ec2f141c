// SPDX-License-Identifier: Apache-2.0
#include "spec.h"

#include <string>
#include <string_view>

#include "arguments.h"
#include "base/format.h"

namespace cistern::python {
namespace {

namespace nb = nanobind;

// Its items, of a mapping: pairs.
nb::object ItemsOf(nb::handle mapping, std::string_view name) {
  if (!nb::hasattr(mapping, "items"))
    Throw(Code::kInvalid,
          Text(name, " is of type ", nb::type_name(mapping.type()).c_str(), ", a mapping is needed"));
  return mapping.attr("items")();
}

GroupSpec GroupFrom(nb::handle group, std::size_t at) {
  const std::string name = Text("groups[", at, "]");
  GroupSpec spec;
  spec.name = ScalarFrom<std::string>(group.attr("name"), name + ".name");
  const std::string reach =
      ScalarFrom<std::string>(group.attr("reach"), name + ".reach", "\"full\" or \"window\"");
  if (reach != "full" && reach != "window")
    Throw(Code::kInvalid, Text(name, ".reach is \"", reach, "\", \"full\" or \"window\" is needed"));
  spec.reach = reach == "window" ? Reach::kWindow : Reach::kFull;
  spec.window_tokens = ScalarFrom<std::uint32_t>(group.attr("window_tokens"), name + ".window_tokens");
  for (nb::handle bytes : group.attr("part_bytes"))
    spec.part_bytes.push_back(
        ScalarFrom<std::uint64_t>(bytes, name + ".part_bytes", "a list of whole numbers"));
  return spec;
}

}  // namespace

void SetHints(nb::handle hints, MatchOptions& out) {
  const auto outlook = ScalarFrom<std::string>(hints.attr("outlook"), "outlook");
  out.hints.outlook = PolicyFrom("outlook", ParseOutlook(outlook));
  const auto importance = ScalarFrom<std::string>(hints.attr("importance"), "importance");
  out.hints.importance = PolicyFrom("importance", ParseImportance(importance));
  out.hints.next_turn_ms = ScalarFrom<std::uint32_t>(hints.attr("next_turn_ms"), "next_turn_ms");
  out.partial = ScalarFrom<bool>(hints.attr("partial"), "partial");
}

NamespaceSpec SpecFrom(nb::handle spec) {
  NamespaceSpec out;
  out.name = ScalarFrom<std::string>(spec.attr("name"), "name");
  out.block_tokens = ScalarFrom<std::uint32_t>(spec.attr("block_tokens"), "block_tokens");
  out.trusted_keys = ScalarFrom<bool>(spec.attr("trusted_keys"), "trusted_keys");
  const auto write = ScalarFrom<std::string>(spec.attr("flash_write"), "flash_write");
  if (!write.empty()) out.flash_write = PolicyFrom("flash_write", ParseWriteRule(write));
  const auto admit = ScalarFrom<std::string>(spec.attr("flash_admit"), "flash_admit");
  if (!admit.empty()) out.flash_admit = PolicyFrom("flash_admit", ParseAdmission(admit));
  const auto mesh = ScalarFrom<std::string>(spec.attr("mesh"), "mesh");
  if (!mesh.empty() && mesh != "on" && mesh != "off")
    Throw(Code::kInvalid, Text("mesh is \"", mesh, "\", \"on\" or \"off\" is needed"));
  if (!mesh.empty()) out.mesh = mesh == "on";
  const auto copies = ScalarFrom<std::uint32_t>(spec.attr("copies"), "copies");
  if (copies != 0) out.copies = copies;
  out.strict = ScalarFrom<bool>(spec.attr("strict"), "strict");
  for (nb::handle field : ItemsOf(spec.attr("fields"), "fields")) {
    const std::string name = ScalarFrom<std::string>(field[0], "the name of a field");
    out.fields.emplace_back(name, ScalarFrom<std::string>(field[1], Text("field ", name)));
  }
  for (nb::handle label : ItemsOf(spec.attr("labels"), "labels")) {
    const std::string name = ScalarFrom<std::string>(label[0], "the name of a label");
    out.labels.emplace_back(name, ScalarFrom<std::string>(label[1], Text("label ", name)));
  }
  std::size_t at = 0;
  for (nb::handle group : spec.attr("groups")) out.groups.push_back(GroupFrom(group, at++));
  return out;
}

}  // namespace cistern::python
