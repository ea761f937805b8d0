"""Body stores: drivers for `pages.bodies.BodyStore` on a folder and on an object store."""
