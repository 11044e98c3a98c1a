"""Providers behind the `Model` port; importing the package loads none of them."""
