// SPDX-License-Identifier: Apache-2.0
#include "mesh/shared_names.h"

#include "mesh/test_mesh.h"

namespace cistern::mesh {
namespace {

class SharedNamesTest : public MeshTest {};

TEST_F(SharedNamesTest, P5WhatOthersMayReadOfIsListedAnewOnlyWhereItHasChanged) {
  StartNodes(1);
  const store::BlockStore& store = *node(0).store;
  SharedNames names(executor(), store, "default");
  EXPECT_TRUE(names.Served()->empty());
  loop->BlockOn(names.Refresh());
  const auto first = names.Served();
  ASSERT_EQ(first->size(), 1u);
  PutChain(0, 1, 8);
  loop->BlockOn(names.Refresh());
  EXPECT_EQ(names.Served(), first);
  // A dropped namespace is another one at once, whoever has looked at it since.
  ASSERT_TRUE(loop->BlockOn(node(0).store->DropNamespace(slot)).has_value());
  const auto second = names.Served();
  EXPECT_NE(second, first);
  for (const auto& [name, served] : *second)
    EXPECT_EQ(served.incarnation, store.NamespaceAt(served.slot)->incarnation);
  loop->BlockOn(names.Refresh());
  ASSERT_EQ(names.Served()->size(), 1u);
  EXPECT_EQ(names.Served()->begin()->first, first->begin()->first);
  NamespaceSpec spec = Blocks();
  spec.name = "another";
  spec.fields = {{"model", "another"}};
  Attach(0, spec);
  loop->BlockOn(names.Refresh());
  EXPECT_EQ(names.Served()->size(), 2u);
}

}  // namespace
}  // namespace cistern::mesh
