"""What sizes come: histograms of real requests, and recordings of them."""
