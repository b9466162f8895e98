"""An index that lives: passages are added, replaced and deleted while others search it."""
